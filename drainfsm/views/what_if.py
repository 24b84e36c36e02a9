"""The decisions of a drain under other settings: what the rule would have said then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core.budget import (
    Allowances,
    Budget,
    Stage,
    durable_evidence,
    evaluate,
)
from drainfsm.core.fold import evolve
from drainfsm.core.records import Record
from drainfsm.core.state import Attempt, State, first_state
from drainfsm.errors import ConfigError

DECISIONS = (e.SaveDecided, e.SaveSkipped, e.SaveAbandoned)
ALLOWANCES = tuple(field.name for field in msgspec.structs.fields(Allowances))


class OtherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is different; None and empty: as it was."""

    grace_ms: int | None = None
    """From the first notice to the deadline."""

    quantile: float | None = None
    """Of the durable write."""

    allowances: dict[str, int] = {}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of a drain, as recorded, and under the other settings."""

    kind: str
    reason: str
    at_ms: int
    """Since the drain's first notice."""

    recorded: Budget
    wrong: str
    """Not empty: what does not follow from its own numbers in the recorded evaluation."""

    other: Budget | None = None

    @property
    def window_ms(self) -> int:
        """The smallest window, from the first notice, in which the rule would have held here."""
        budget = self.recorded if self.other is None else self.other
        return self.at_ms + budget.needed_ms + budget.clock_skew_ms + 1


def parse_settings(text: str) -> OtherSettings:
    """``grace=60,exit_margin_ms=2000,store_bytes_per_s=2e9,quantile=0.95``.

    Raises:
        ConfigError: an unknown name, or a value that is not a number of its kind.
    """
    grace_ms: int | None = None
    quantile: float | None = None
    allowances: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        number = _number(part, value)
        if name == "grace":
            grace_ms = round(number * 1_000)
        elif name == "quantile":
            if not 0 < number < 1:
                raise ConfigError(f"--what-if {part}: a quantile lies between 0 and 1")
            quantile = number
        elif name in ALLOWANCES:
            allowances[name] = round(number)
        else:
            known = ", ".join(("grace", "quantile", *ALLOWANCES))
            raise ConfigError(f"--what-if {name} is not known; known: {known}")
    if grace_ms is None and quantile is None and not allowances:
        raise ConfigError("--what-if names nothing; e.g. --what-if grace=60,exit_margin_ms=2000")
    return OtherSettings(grace_ms=grace_ms, quantile=quantile, allowances=allowances)


def _number(part: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"--what-if {part}: {value!r} is not a number") from None
    if not math.isfinite(number) or not 0 <= number < 1e15:
        raise ConfigError(f"--what-if {part}: {value} is out of range")
    return number


def states_before(records: Sequence[Record]) -> Mapping[int, State]:
    """The state before each decision, by the identity of its event."""
    if not records:
        return {}
    state = first_state(job_id=records[0].job_id, epoch=records[0].epoch)
    found: dict[int, State] = {}
    for record in records:
        for event in record.events:
            if isinstance(event, e.UnknownFact):
                continue
            if isinstance(event, DECISIONS):
                found[id(event)] = state
            state = evolve(state, event)
    return found


def under(
    settings: OtherSettings, budget: Budget, attempt: Attempt, *, opened_unix_ms: int
) -> Budget:
    """The same evaluation with other settings, and the same saves on record."""
    allowances = replace(attempt.allowances, **settings.allowances)
    deadline_unix_ms = budget.deadline_unix_ms
    if settings.grace_ms is not None:
        deadline_unix_ms = opened_unix_ms + settings.grace_ms
    skew_ms = settings.allowances.get("clock_skew_ms", budget.clock_skew_ms)
    samples = () if "store_bytes_per_s" in settings.allowances else attempt.samples
    made = evaluate(
        stage=Stage(budget.stage),
        now_unix_ms=budget.now_unix_ms,
        deadline_unix_ms=deadline_unix_ms,
        clock_skew_ms=skew_ms,
        allowances=allowances,
        samples=samples,
        load=attempt.load,
    )
    if settings.quantile is None or made.durable is None:
        return made
    durable = durable_evidence(samples, attempt.load, allowances, quantile=settings.quantile)
    needed_ms = made.needed_ms - made.durable.value_ms + durable.value_ms
    return replace(made, durable=durable, needed_ms=needed_ms, fits=made.remaining_ms > needed_ms)
