"""All that the author of an adapter imports: notice sources, cordons and requeuers.

An adapter is a factory under the entry point group ``drainfsm.adapters``; its name is what
``--source NAME`` (and ``--cordon NAME``) says; or ``--source module:factory``, without an entry
point. The factory takes an ``AdapterContext`` and returns an object that is one or more of
``NoticeSource``, ``Cordon`` and ``Requeuer``: what it can do is what it has the methods for. Every
method is called on the agent's event loop.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.errors import ConfigError, DrainfsmError

__all__ = [
    "GROUP",
    "Adapter",
    "AdapterContext",
    "AdapterFactory",
    "Cause",
    "Cordon",
    "Departure",
    "Interpreter",
    "JobStatus",
    "LastRequeuer",
    "Notice",
    "NoticeClass",
    "NoticeSink",
    "NoticeSource",
    "Requeuer",
    "StatusDisplay",
    "Staying",
    "adapter_names",
    "load_adapter",
    "options_name",
]


def _wall_clock_unix_ms() -> int:
    return time.time_ns() // 1_000_000


class AdapterContext(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter may know about the agent that runs it."""

    job_id: str
    node_rank: int
    node_count: int
    grace_ms: int
    options: dict[str, str] = {}
    """The table ``[adapters.NAME]`` of drainfsm.toml, and ``DRAINFSM_ADAPTER_NAME_KEY``."""

    now_unix_ms: Callable[[], int] = _wall_clock_unix_ms
    """The agent's clock: ``received_unix_ms`` and deadlines are stated by it."""

    epoch: Callable[[], int] = lambda: 0
    """The attempt's number; 0 before the job is claimed. Adapters are built before that: an error
    in a factory must not cost a healthy attempt elsewhere its life."""

    left_for: Mapping[str, int | None] = {}
    """What earlier attempts of the job have left for on this machine: deadlines in UTC
    milliseconds by ``Notice.identity`` (None: it stated none). Such a notice is not news: see
    ``NoticeSink.notice``. An adapter that derives a deadline from when it saw an event takes the
    one given here; else the event would be new to every attempt."""


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """How the job has left, for the last act of an adapter."""

    requeue: bool
    """It wants to be started again."""

    held: str = ""
    """Not empty: it would be started again, but its attempts make no progress, and somebody has to
    look at it first. This is why; ``requeue`` is False. A scheduler that can holds the job."""

    left_for: frozenset[str] = frozenset()
    """Identities of the notices that the job has left for. Empty: it ended by itself, or was lost.
    An act that cannot be taken back (an acknowledgement) is for these alone."""

    timeout_ms: int
    """How long the act may take: what the deadline leaves."""


class NoticeSink(Protocol):
    """Where a source puts what it hears. Every call returns at once and may be repeated."""

    def notice(self, notice: Notice) -> None:
        """A notice is present. The same one again costs nothing.

        One that an earlier attempt on this machine has left for is recorded and not left for again,
        unless its deadline is another one, or is that of a HARD notice and still ahead.
        """

    def withdraw(self, *, source: str, native_id: str, reason: str) -> None:
        """A SOFT notice was taken back. Withdrawing a HARD one is refused by the core."""

    def unknown(self, *, source: str, since_unix_ms: int, detail: str) -> None:
        """The source has been unable to tell since then. Withdraws nothing."""

    def recovered(self, *, source: str) -> None:
        """The source can tell again."""


@runtime_checkable
class NoticeSource(Protocol):
    """Hears that capacity goes away. ``--source NAME``."""

    async def watch(self, sink: NoticeSink) -> None:
        """Hear notices until cancelled. Errors of the platform are reported as ``unknown``, not
        raised."""


@runtime_checkable
class Cordon(Protocol):
    """Takes nodes out of service. ``--cordon NAME``."""

    async def cordon(self, nodes: tuple[str, ...], *, timeout_ms: int) -> str:
        """Schedule nothing new on the nodes (empty: this one). Returns a detail for the log.

        Raises:
            Exception: recorded as the failure's detail; the drain goes on.
        """


@runtime_checkable
class Requeuer(Protocol):
    """Has the last word: acknowledges, or sees that the job comes back."""

    async def left(self, departure: Departure) -> str:
        """The whole job has left (called on every node, after its ranks are gone): acknowledge, or
        requeue, and keep trying as long as there is time. Returns what was done, in words for the
        operator; empty: nothing.

        Also called where nothing was started, but another start may succeed: the store did not
        answer, or a notice's time was up before the job could begin.

        Raises:
            Exception: it could not be done; says what to do. The process ends all the same.
        """


@runtime_checkable
class LastRequeuer(Requeuer, Protocol):
    """Optional for a requeuer after whose act the platform may take the machine at once, as an
    acknowledgement does: it is asked when the acts of all others are done."""

    takes_machine: bool


@runtime_checkable
class Interpreter(Protocol):
    """Optional for a source, where the platform sends signals and knows why."""

    async def interpret(self, notice: Notice, *, timeout_ms: int) -> Notice | None:
        """What a bare signal means. None: the adapter has said it by a notice of its own.

        Called on node 0 only, for the signals of every node.
        """


@runtime_checkable
class Staying(Protocol):
    """Optional for a source, where a process that ends by itself would not come back."""

    async def stay(self) -> None:
        """Called after everything else; returns when the process may end."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where the job stands, after a decision that is on record."""

    epoch: int
    phase: str
    """Of the drain; ``idle`` without one."""

    deadline_unix_ms: int | None = None
    """Of the drain; None: there is none."""

    committed_step: int | None = None
    """Newest step that a restart would resume after; None: none is committed."""

    committed_unix_ms: int | None = None
    """When this attempt committed it; None: an earlier attempt did."""


@runtime_checkable
class StatusDisplay(Protocol):
    """Optional for an adapter: shows in the platform's own tools how the job stands."""

    def show(self, status: JobStatus) -> None:
        """Called on node 0 after every decision. Returns at once and shows it later; what is
        outdated by then may be left out."""


Adapter: TypeAlias = NoticeSource | Cordon | Requeuer
AdapterFactory = Callable[[AdapterContext], Adapter]

# --- finding one ---------------------------------------------------------------------------------

GROUP = "drainfsm.adapters"
"""Group of the entry points."""


def adapter_names() -> tuple[str, ...]:
    """Installed adapters, sorted."""
    return tuple(sorted(entry_points(group=GROUP).names))


def options_name(name: str) -> str:
    """NAME in ``[adapters.NAME]`` and ``DRAINFSM_ADAPTER_NAME_KEY``, by which an adapter finds its
    options: its own name, or that of its module without the packages above it."""
    module, colon, _ = name.partition(":")
    return module.rpartition(".")[2] if colon else name


def find_adapter(name: str, *, option: str = "source") -> EntryPoint:
    """The entry point of that name, or of ``module:attribute``; imports nothing yet.

    Raises:
        ConfigError: no such adapter is installed.
    """
    if ":" in name:
        return EntryPoint(name=name, value=name, group=GROUP)
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        known = ", ".join(adapter_names()) or "none"
        raise ConfigError(f"--{option} {name}: no such adapter is installed (installed: {known})")
    return found[0]


def load_adapter(name: str, context: AdapterContext) -> Adapter:
    """The adapter of that name.

    Raises:
        ConfigError: no such adapter is installed, its own dependencies are missing, it refuses its
            options, or it fails.
    """
    point = find_adapter(name)
    if ":" in name and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # a console script does not look in the working directory
    try:
        factory: AdapterFactory = point.load()
    except ImportError as error:
        hint = "" if ":" in name else f"; install it with `pip install 'drainfsm[{name}]'`"
        raise ConfigError(f"--source {name}: {error}{hint}") from error
    except Exception as error:
        raise _broken(point, error) from error
    try:
        return factory(context)
    except DrainfsmError:
        raise
    except Exception as error:
        raise _broken(point, error) from error


def _broken(point: EntryPoint, error: Exception) -> ConfigError:
    return ConfigError(
        f"--source {point.name}: the adapter {point.value} failed before the job was started: "
        f"{type(error).__name__}: {error}"
    )
