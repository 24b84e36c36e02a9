"""What a site allows: who may preempt whom, how soon, how often, and when a job comes back."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from drainfsm.core.foreign import UNREADABLE
from drainfsm.errors import ConfigError

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0, lt=1e9)]
TIER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What goes as a QOS of Slurm and as the value of an annotation."""

JITTER_MAX = 0.5
"""With more, the pause after one preemption could be longer than the one after two."""


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of jobs."""

    name: str
    preempts: tuple[str, ...] | None = None
    """Names of the tiers whose jobs it may preempt; None: all below it."""

    ignores_minimum: bool = False
    """It may preempt a job that has not had its minimum run time. Each time is recorded."""


TIERS = (
    Tier(name="interactive", ignores_minimum=True),
    Tier(name="production"),
    Tier(name="training"),
    Tier(name="batch"),
)


class PreemptionRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tiers: tuple[Tier, ...] = TIERS
    """Highest first."""

    minimum_run_s: Seconds = 1_800.0
    """A job runs for this long before it may be preempted."""

    evictions_max: Count = 4
    """Evictions of one job within ``quota_s``. A job that has had this many is spared until the
    oldest is past."""

    quota_s: Seconds = 86_400.0

    def __post_init__(self) -> None:
        names = [tier.name for tier in self.tiers]
        if len(set(names)) != len(names) or not names:
            raise ValueError(f"tiers: {', '.join(names) or 'none'}; each needs a name of its own")
        for tier in self.tiers:
            for name in tier.preempts or ():
                if name not in names:
                    raise ValueError(f"tier {tier.name} preempts {name}, which is not a tier")

    def tier(self, name: str) -> Tier:
        """Raises: ConfigError: there is none of that name."""
        found = next((tier for tier in self.tiers if tier.name == name), None)
        if found is None:
            known = ", ".join(tier.name for tier in self.tiers)
            raise ConfigError(f"no tier is called {name!r}; there are {known}")
        return found

    def victims_of(self, name: str) -> tuple[str, ...]:
        """Names of the tiers whose jobs one of this tier may preempt."""
        tier = self.tier(name)
        if tier.preempts is not None:
            return tier.preempts
        return tuple(one.name for one in self.tiers[self.tiers.index(tier) + 1 :])


class RestartRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a job comes back. Counts are in a row: an attempt that was healthy ends the row."""

    free_preemptions: Count = 3
    """After this many the job comes back after ``pause_s``; after each further one it waits twice
    as long. A loss is unplanned: there the pause doubles from the first one on."""

    pause_s: Seconds = 1.0
    pause_s_max: Seconds = 60.0
    jitter: Annotated[float, Meta(ge=0, le=JITTER_MAX)] = JITTER_MAX
    """Share of a doubled pause by which chance may shorten it, so that jobs that left together do
    not come back together."""

    preemptions_max: Count = 20
    failures_max: Count = 10
    healthy_s: Seconds = 300.0
    """An attempt that lived for this long, and committed something new, was healthy."""


class CascadeRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hops: Annotated[int, Meta(ge=2)] = 3
    """A chain of this many evictions, each by the victim of the one before, is a cascade."""

    window_s: Seconds = 3_600.0
    """From its first eviction to its last."""

    thrash_max: Annotated[float, Meta(gt=0)] = 0.25
    """Time spent starting and draining, over time spent training."""


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of ``--rules``."""

    preemption: PreemptionRules = PreemptionRules()
    restart: RestartRules = RestartRules()
    cascade: CascadeRules = CascadeRules()


def read_rules(text: str, *, where: str) -> Rules:
    """A TOML document with the tables ``preemption``, ``restart`` and ``cascade``.

    Raises:
        ConfigError: it is not one, or something in it is unknown or wrong.
    """
    try:
        rules = msgspec.convert(tomllib.loads(text), Rules)
    except UNREADABLE as error:
        raise ConfigError(f"{where}: {error}") from error
    for problem in _problems(rules):
        raise ConfigError(f"{where}: {problem}")
    return rules


def _problems(rules: Rules) -> Iterator[str]:
    """What only a file is refused for: decisions by such rules are on record, and stay readable."""
    restart, preemption = rules.restart, rules.preemption
    if restart.pause_s > restart.pause_s_max:
        yield f"pause_s {restart.pause_s:g} is more than pause_s_max {restart.pause_s_max:g}"
    for tier in preemption.tiers:
        if not TIER_NAME.fullmatch(tier.name):
            yield f"tier {tier.name!r}: use 1 to 64 letters, digits, '_', '-' and '.'"
        if path := _circle(preemption, tier.name):
            yield f"{' preempts '.join(path)}: jobs of these tiers would evict one another for ever"


def _circle(rules: PreemptionRules, name: str) -> tuple[str, ...]:
    """A way from this tier back to it; empty: there is none."""
    by: dict[str, str] = {}
    pending = [name]
    while pending:
        tier = pending.pop()
        for victim in rules.victims_of(tier):
            if victim not in by:
                by[victim] = tier
                pending.append(victim)
    if name not in by:
        return ()
    path = [name, by[name]]
    while path[-1] != name:
        path.append(by[path[-1]])
    return tuple(reversed(path))


def slurm_settings(rules: PreemptionRules) -> Sequence[str]:
    """The same for Slurm's own preemption, as lines of slurm.conf."""
    minutes, seconds = divmod(round(rules.minimum_run_s), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"PreemptExemptTime={hours:02d}:{minutes:02d}:{seconds:02d}",
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        *(
            f"sacctmgr modify qos {tier.name} set preempt={','.join(victims)}"
            for tier in rules.tiers
            if (victims := rules.victims_of(tier.name))
        ),
    )
