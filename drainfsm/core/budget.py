"""Does a save fit before the hard deadline? Pure arithmetic, no clock.

The rule: save only if ``remaining > quiesce + durable + commit + exit_margin``, strictly; terms
that are already spent drop out. Everything here is in whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from drainfsm.core.fit import Fit, SizedSave, fitted
from drainfsm.core.quantiles import samples_needed, upper_bound
from drainfsm.core.words import Word

QUIESCE_QUANTILE = 0.95
DURABLE_QUANTILE = 0.99
COMMIT_QUANTILE = 0.95

STEPS_TO_RUN = 2
"""At most this many steps lie between being asked to stop and the end of the stop step."""

SAMPLES_MAX = 512
"""Samples kept in the state and carried into the next attempt: enough for p99 (299)."""

COMPARABLE_BYTES_RATIO = 1.25
"""A sample counts for a save whose size is within this factor of its own."""


class Allowances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Fixed reserves of a drain, from configuration."""

    handler_ms: int = 1_000
    """From the platform's notice to the coordinator's decision."""

    quiesce_ms: int = 5_000
    """For all ranks to reach the stop step; more where their steps are known to be longer."""

    commit_ms: int = 3_000
    """Verify the entries, write the manifest, create the commit slot."""

    exit_margin_ms: int = 5_000
    """From "leave" to no process left."""

    clock_skew_ms: int = 500
    """Largest difference assumed between the clock of the deadline and ours."""

    store_bytes_per_s: int = 100_000_000
    """Assumed durable write bandwidth of the whole job before a save was seen."""

    barrier_ms: int = 1_000
    """Fixed cost of a save: planning collectives, barriers, clean-up."""

    schedule_slack_ms: int = 30_000
    """A SOFT notice starts its drain this much before the latest safe start."""


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How long one committed save, and the quiesce before it, really took. Of an abandoned save:
    how long it had taken when its time ran out."""

    world_size: int
    save_bytes: int
    store: str
    """Kind and place of the store, so that a move to another one starts afresh."""

    durable_ms: int
    """From the order to save to every byte durable, on the slowest rank."""

    commit_ms: int
    """Verify, manifest, commit slot."""

    quiesce_ms: int | None = None
    """Only drains quiesce; a periodic save has none."""


class Load(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The save that is being decided on."""

    world_size: int
    save_bytes: int
    store: str


class Basis(Word):
    """Where one term of the rule comes from."""

    QUANTILE = "quantile"
    """An upper bound of the quantile, for any distribution."""

    OBSERVED_MAX = "observed_max"
    SIZING = "sizing"
    """Bytes over the assumed bandwidth, plus the fixed cost. Records of before: or over that of the
    slowest save."""

    FITTED = "fitted"
    """Saves of other sizes or numbers of ranks in the same store, plus the fixed cost."""

    STEP_TIMES = "step_times"
    """The step times that the ranks reported."""

    ALLOWANCE = "allowance"


class Evidence(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One term of the rule, and the evidence for it."""

    value_ms: int
    basis: Basis
    sample_count: int
    """Of comparable saves."""

    samples_needed: int
    fit: Fit | None = None
    """Where the basis is ``fitted``: the line, and what it was drawn from."""


class Stage(Word):
    """How far the drain is: terms of earlier stages are spent and drop out."""

    NOTICE = "notice"
    QUIESCED = "quiesced"
    SAVING = "saving"
    DURABLE = "durable"


class Budget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One evaluation of the rule with all of its inputs, as stored in decision events."""

    stage: Stage
    now_unix_ms: int
    deadline_unix_ms: int
    clock_skew_ms: int
    remaining_ms: int
    """Time that can be relied on: deadline - skew - now, never negative."""

    quiesce: Evidence | None
    durable: Evidence | None
    commit: Evidence | None
    exit_margin_ms: int
    needed_ms: int
    fits: bool

    @property
    def terms(self) -> tuple[tuple[str, Evidence], ...]:
        """Those that are still to come, by name."""
        named = (("quiesce", self.quiesce), ("durable", self.durable), ("commit", self.commit))
        return tuple((name, term) for name, term in named if term is not None)

    @property
    def save_budget_ms(self) -> int:
        """What is left for the durable write once the allowances are subtracted."""
        durable = self.durable.value_ms if self.durable else 0
        return self.remaining_ms - (self.needed_ms - durable)


def save_budget_ms(*, window_ms: int, allowances: Allowances) -> int:
    """Durable-write budget of a fresh window, skew and reserves off; never negative.

    150 s with 5/20/15/15 s reserved (and no skew) leave 95 s.
    """
    reserved = (
        allowances.handler_ms
        + allowances.quiesce_ms
        + allowances.commit_ms
        + allowances.exit_margin_ms
        + allowances.clock_skew_ms
    )
    return max(0, window_ms - reserved)


def remaining_ms(*, deadline_unix_ms: int, now_unix_ms: int, clock_skew_ms: int) -> int:
    """Time left that can be relied on; zero, never negative, once it is gone."""
    return max(0, deadline_unix_ms - clock_skew_ms - now_unix_ms)


def comparable(samples: Iterable[Sample], load: Load) -> tuple[Sample, ...]:
    """The samples of real saves that are comparable to this load."""
    return tuple(
        s
        for s in samples
        if s.world_size == load.world_size
        and s.store == load.store
        and load.save_bytes <= s.save_bytes * COMPARABLE_BYTES_RATIO
        and s.save_bytes <= load.save_bytes * COMPARABLE_BYTES_RATIO
    )


def durable_evidence(
    samples: Sequence[Sample],
    load: Load,
    allowances: Allowances,
    *,
    quantile: float = DURABLE_QUANTILE,
) -> Evidence:
    """Comparable saves, and whatever other saves in this store say; the assumed bandwidth only
    where there was none."""
    here = [
        SizedSave(s.world_size, s.save_bytes, s.durable_ms)
        for s in samples
        if s.store == load.store
    ]
    fit = fitted(here, SizedSave(load.world_size, load.save_bytes))
    if fit is None:
        floor_ms = _ceil_div(load.save_bytes * 1_000, max(1, allowances.store_bytes_per_s))
    else:
        floor_ms = fit.value_ms
    found = evidence(
        [s.durable_ms for s in comparable(samples, load)],
        quantile=quantile,
        floor_ms=floor_ms + allowances.barrier_ms,
        basis=Basis.SIZING if fit is None else Basis.FITTED,
    )
    return replace(found, fit=fit) if found.basis is Basis.FITTED else found


def _commit_evidence(samples: Sequence[Sample], load: Load, allowances: Allowances) -> Evidence:
    """Comparable saves, and the slowest of all others in this store."""
    slowest_ms = max((s.commit_ms for s in samples if s.store == load.store), default=0)
    return evidence(
        [s.commit_ms for s in comparable(samples, load)],
        quantile=COMMIT_QUANTILE,
        floor_ms=max(allowances.commit_ms, slowest_ms),
        basis=Basis.OBSERVED_MAX if slowest_ms > allowances.commit_ms else Basis.ALLOWANCE,
    )


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def evidence(values_ms: Sequence[int], *, quantile: float, floor_ms: int, basis: Basis) -> Evidence:
    """The quantile's bound; with too few samples the observed maximum or the floor."""
    needed = samples_needed(quantile)
    bound = upper_bound(values_ms, quantile=quantile)
    if bound is not None:
        return Evidence(
            value_ms=bound,
            basis=Basis.QUANTILE,
            sample_count=len(values_ms),
            samples_needed=needed,
        )
    observed = max(values_ms, default=0)
    return Evidence(
        value_ms=max(observed, floor_ms),
        basis=Basis.OBSERVED_MAX if observed > floor_ms else basis,
        sample_count=len(values_ms),
        samples_needed=needed,
    )


def evaluate(
    *,
    stage: Stage,
    now_unix_ms: int,
    deadline_unix_ms: int,
    clock_skew_ms: int,
    allowances: Allowances,
    samples: Sequence[Sample],
    load: Load,
    step_ms: int = 0,
) -> Budget:
    """The rule at one instant. ``clock_skew_ms`` is the larger of configured and estimated skew,
    ``step_ms`` the longest recent step of any rank (0: not known)."""
    quiesce, durable, commit = _terms(
        stage, allowances=allowances, samples=samples, load=load, step_ms=step_ms
    )
    terms = sum(term.value_ms for term in (quiesce, durable, commit) if term is not None)
    left = remaining_ms(
        deadline_unix_ms=deadline_unix_ms,
        now_unix_ms=now_unix_ms,
        clock_skew_ms=clock_skew_ms,
    )
    needed = terms + allowances.exit_margin_ms
    return Budget(
        stage=stage,
        now_unix_ms=now_unix_ms,
        deadline_unix_ms=deadline_unix_ms,
        clock_skew_ms=clock_skew_ms,
        remaining_ms=left,
        quiesce=quiesce,
        durable=durable,
        commit=commit,
        exit_margin_ms=allowances.exit_margin_ms,
        needed_ms=needed,
        fits=left > needed,
    )


def _terms(
    stage: Stage, *, allowances: Allowances, samples: Sequence[Sample], load: Load, step_ms: int
) -> tuple[Evidence | None, Evidence | None, Evidence | None]:
    """Quiesce, durable and commit, where they are still to come."""
    quiesce = durable = commit = None
    if stage is Stage.NOTICE:
        steps_ms = STEPS_TO_RUN * step_ms
        quiesce = evidence(
            [s.quiesce_ms for s in samples if s.quiesce_ms is not None],
            quantile=QUIESCE_QUANTILE,
            floor_ms=max(allowances.quiesce_ms, steps_ms),
            basis=Basis.STEP_TIMES if steps_ms > allowances.quiesce_ms else Basis.ALLOWANCE,
        )
    if stage in (Stage.NOTICE, Stage.QUIESCED):
        durable = durable_evidence(samples, load, allowances)
    if stage is not Stage.DURABLE:
        commit = _commit_evidence(samples, load, allowances)
    return quiesce, durable, commit
