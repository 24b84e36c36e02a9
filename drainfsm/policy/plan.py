"""How long a grace window must be: the rule of a drain, solved for the window.

``T_grace > handler + quiesce + (bytes / bandwidth + barrier) + commit + exit margin + clock skew``.
The terms are those of ``core.budget``: with a log, bounds from the job's own saves.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from drainfsm.core.budget import (
    Allowances,
    Evidence,
    Load,
    Sample,
    Stage,
    comparable,
    evaluate,
)
from drainfsm.core.quantiles import samples_needed, upper_bound
from drainfsm.policy.interval import Interval
from drainfsm.policy.windows import WINDOWS, Setting, Window, settings

SHARES = (0.50, 0.95, 0.99)


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """The window in which this share of the recorded saves would have fitted."""

    share: float
    window_ms: int
    """From the recorded saves, each paired with each recorded wait for the ranks."""

    bound_ms: int | None
    """Not exceeded by the true quantile, at 95 % confidence; None: too few saves."""

    samples_needed: int


class Chance(msgspec.Struct, frozen=True, kw_only=True):
    """How likely a save fits one window, from the recorded saves."""

    window_ms: int
    probability: float
    save_count: int


class PlatformFit(msgspec.Struct, frozen=True, kw_only=True):
    """A platform's window compared with what is needed."""

    window: Window
    fits: bool
    spare_ms: int
    """Negative: this much is missing."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that ``drainfsm plan`` prints."""

    save_bytes: int
    node_count: int
    bytes_per_s: int
    """Of the whole job."""

    bandwidth_basis: str
    """``given``, ``measured`` (the slowest save on record) or ``assumed``."""

    handler_ms: int
    quiesce: Evidence
    durable: Evidence
    commit: Evidence
    exit_margin_ms: int
    clock_skew_ms: int
    needed_ms: int
    """The window must be longer than this."""

    grace_s: int
    """The smallest whole number of seconds that is longer."""

    sample_count: int
    windows: tuple[Windows, ...]
    chances: tuple[Chance, ...]
    settings: tuple[Setting, ...]
    platforms: tuple[PlatformFit, ...]
    interval: Interval | None = None

    @property
    def node_bytes(self) -> int:
        """The share of one node, if all are alike."""
        return -(-self.save_bytes // self.node_count)


def plan(
    *,
    save_bytes: int,
    allowances: Allowances,
    node_count: int = 1,
    bytes_per_s: int | None = None,
    samples: Sequence[Sample] = (),
    windows_ms: Sequence[int] = (),
    interval: Interval | None = None,
) -> Plan:
    """``bytes_per_s``: used instead of the bandwidth of the samples.

    Raises:
        ValueError: bytes, nodes or bandwidth that are not positive.
    """
    if save_bytes <= 0 or node_count <= 0 or (bytes_per_s is not None and bytes_per_s <= 0):
        raise ValueError("bytes, nodes and bandwidth must be more than 0")
    load = _load(save_bytes, samples)
    alike, known = comparable(samples, load), samples
    if bytes_per_s is not None:
        known, allowances = (), replace(allowances, store_bytes_per_s=bytes_per_s)
    budget = evaluate(
        stage=Stage.NOTICE,
        now_unix_ms=0,
        deadline_unix_ms=0,
        clock_skew_ms=allowances.clock_skew_ms,
        allowances=allowances,
        samples=known,
        load=load,
    )
    quiesce, durable, commit = budget.quiesce, budget.durable, budget.commit
    assert quiesce is not None and durable is not None and commit is not None  # noqa: PT018
    needed_ms = budget.needed_ms + allowances.handler_ms + allowances.clock_skew_ms
    grace_s = needed_ms // 1_000 + 1
    totals = _totals(alike, samples, allowances) if alike else []
    return Plan(
        save_bytes=save_bytes,
        node_count=node_count,
        bytes_per_s=_bytes_per_s(save_bytes, durable, allowances),
        bandwidth_basis=_basis(bytes_per_s, known, load),
        handler_ms=allowances.handler_ms,
        quiesce=quiesce,
        durable=durable,
        commit=commit,
        exit_margin_ms=allowances.exit_margin_ms,
        clock_skew_ms=allowances.clock_skew_ms,
        needed_ms=needed_ms,
        grace_s=grace_s,
        sample_count=len(alike),
        windows=tuple(_window(totals, alike, share) for share in SHARES) if totals else (),
        chances=tuple(_chance(totals, len(alike), window) for window in windows_ms if totals),
        settings=settings(grace_s=grace_s, exit_margin_ms=allowances.exit_margin_ms),
        platforms=tuple(_verdict(window, needed_ms) for window in WINDOWS),
        interval=interval,
    )


def _load(save_bytes: int, samples: Sequence[Sample]) -> Load:
    """That of the newest recorded save: the same ranks, the same store."""
    if not samples:
        return Load(world_size=1, save_bytes=save_bytes, store="")
    newest = samples[-1]
    return Load(world_size=newest.world_size, save_bytes=save_bytes, store=newest.store)


def _bytes_per_s(save_bytes: int, durable: Evidence, allowances: Allowances) -> int:
    return save_bytes * 1_000 // max(1, durable.value_ms - allowances.barrier_ms)


def _basis(given: int | None, samples: Sequence[Sample], load: Load) -> str:
    if given is not None:
        return "given"
    return "measured" if any(s.store == load.store for s in samples) else "assumed"


def _totals(
    alike: Sequence[Sample], samples: Sequence[Sample], allowances: Allowances
) -> list[int]:
    """The windows that each pair of a save and a wait for the ranks would have needed, sorted.

    All pairs: what resampling the log would converge to.
    """
    waits = [s.quiesce_ms for s in samples if s.quiesce_ms is not None] or [allowances.quiesce_ms]
    fixed = allowances.handler_ms + allowances.exit_margin_ms + allowances.clock_skew_ms
    return sorted(
        fixed + wait + save.durable_ms + save.commit_ms for save in alike for wait in waits
    )


def _window(totals: Sequence[int], alike: Sequence[Sample], share: float) -> Windows:
    at = min(len(totals) - 1, max(0, -(-round(len(totals) * share * 1e9) // 10**9) - 1))
    saves = [save.durable_ms + save.commit_ms for save in alike]
    bound = upper_bound(saves, quantile=share)
    beside = totals[-1] - max(saves)  # fixed terms, and the longest recorded wait for the ranks
    return Windows(
        share=share,
        window_ms=totals[at] + 1,
        bound_ms=None if bound is None else bound + beside + 1,
        samples_needed=samples_needed(share),
    )


def _chance(totals: Sequence[int], save_count: int, window_ms: int) -> Chance:
    fitting = bisect.bisect_left(totals, window_ms)
    return Chance(window_ms=window_ms, probability=fitting / len(totals), save_count=save_count)


def _verdict(window: Window, needed_ms: int) -> PlatformFit:
    spare_ms = window.window_ms - needed_ms
    return PlatformFit(window=window, fits=spare_ms > 0, spare_ms=spare_ms)
