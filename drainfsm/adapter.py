"""All that the author of an adapter imports: notice sources, cordons and requeuers.

An adapter is a factory under the entry point group ``drainfsm.adapters``; its name is what
``--source NAME`` (and ``--cordon NAME``) says. The factory takes an ``AdapterContext`` and
returns an ``Adapter``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import msgspec

from drainfsm.core.notice import Notice


def _wall_clock_unix_ms() -> int:
    return time.time_ns() // 1_000_000


class AdapterContext(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter may know about the agent that runs it."""

    job_id: str
    epoch: int
    node_rank: int
    node_count: int
    grace_ms: int
    options: dict[str, str] = {}
    """The table ``[adapters.NAME]`` of drainfsm.toml, and ``DRAINFSM_ADAPTER_NAME_KEY``."""

    now_unix_ms: Callable[[], int] = _wall_clock_unix_ms
    """The agent's clock: ``received_unix_ms`` and deadlines are stated by it."""


class NoticeSink(Protocol):
    """Where a source puts what it hears. Every call returns at once and may be repeated."""

    def notice(self, notice: Notice) -> None:
        """A notice is present. The same one again costs nothing."""

    def withdraw(self, *, source: str, native_id: str, reason: str) -> None:
        """A SOFT notice was taken back. Withdrawing a HARD one is refused by the core."""

    def unknown(self, *, source: str, since_unix_ms: int, detail: str) -> None:
        """The source has not been able to tell since then. Clears nothing."""

    def recovered(self, *, source: str) -> None:
        """The source can tell again."""


class Adapter(Protocol):
    """One platform. Every method is called on the agent's event loop."""

    async def watch(self, sink: NoticeSink) -> None:
        """Hear notices until cancelled. Errors of the platform are not raised but ``unknown``."""

    async def cordon(self, nodes: tuple[str, ...], *, timeout_ms: int) -> str:
        """Schedule nothing new on the nodes (empty: this one). Returns a detail for the log.

        Raises:
            Exception: recorded as the failure's detail; the drain goes on.
        """

    async def left(self, *, requeue: bool, timeout_ms: int) -> str:
        """The whole job has left (called on every node, after its ranks are gone): acknowledge,
        or requeue. ``requeue``: the job wants to come back. Returns a detail for the log."""


@runtime_checkable
class Interpreter(Protocol):
    """What an adapter may have besides, where the platform sends signals and knows why."""

    async def interpret(self, notice: Notice, *, timeout_ms: int) -> Notice | None:
        """What a bare signal means. None: the adapter has said it by a notice of its own.

        Called on node 0 only, for the signals of every node.
        """


@runtime_checkable
class Staying(Protocol):
    """What an adapter may have besides, where a process must not end by itself to come back."""

    async def stay(self) -> None:
        """Called after everything else; returns when the process may end."""


AdapterFactory = Callable[[AdapterContext], Adapter]
