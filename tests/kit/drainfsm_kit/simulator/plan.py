"""What a seed stands for: a job, the machines it runs on, and what happens to it and when."""

from __future__ import annotations

import msgspec

from drainfsm.core.budget import Allowances
from drainfsm.core.state import Phase

JOB = "job"
LATE_MS = 2_500
"""A notice that leaves less time than this to its deadline cannot be kept by anybody."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The job, and the pace of everything."""

    node_count: int
    ranks_per_node: int
    attempts_max: int
    step_ms: int
    step_count: int
    """The job is done after so many."""

    save_every: int
    """Steps between periodic saves; 0: none."""

    save_bytes: int
    write_ms: int
    """Longest write of a rank's part."""

    load_ms: int
    allowances: Allowances
    grace_ms: int
    skews_ms: tuple[int, ...]
    """By machine: its clock less the true time, within ``allowances.clock_skew_ms``."""

    drifts_ppm: tuple[int, ...] = (0,)
    """By machine: what its clocks gain."""

    heartbeat_s: float = 3.0
    silence_s: float = 12.0
    attach_s: float = 40.0
    end_ms: int = 90_000
    """After so long every attempt gets a HARD notice: nothing runs for ever."""

    same_disk: bool = True
    """Every attempt has its node 0 on the same state directory."""

    broker_leaks: bool = False
    """It lets stale appends through (its check is the leader's alone)."""

    @property
    def world_size(self) -> int:
        return self.node_count * self.ranks_per_node

    @property
    def rank_bytes(self) -> int:
        return self.save_bytes // self.world_size


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the world does to an attempt, once."""

    what: str
    attempt: int
    phase: Phase | None = None
    """Counted from when the attempt first reaches it; None: from the start of the attempt."""

    after_ms: int = 0
    node: int = 0
    rank: int = 0
    """On that node."""

    for_ms: int = 0
    amount: int = 0


class GivenNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice that comes, or is taken back."""

    what: str
    """``platform``, ``signal`` or ``notify``; with ``withdraw``: taken back."""

    attempt: int
    phase: Phase | None = None
    after_ms: int = 0
    node: int = 0
    native_id: str = "a"
    hard: bool = True
    in_ms: int | None = None
    """Its deadline from when it is given; None: it states none."""

    skew_ms: int = 0
    """How far its source's clock is off, which the source says."""

    withdraw: bool = False
    times: int = 1


Event = Happening | GivenNotice


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    world: World
    events: tuple[Event, ...]

    @property
    def hopeless(self) -> bool:
        """A notice comes so late that an attempt may end without a last word."""
        return any(
            isinstance(event, GivenNotice) and event.in_ms is not None and event.in_ms < LATE_MS
            for event in self.events
        )

    def keep(self, numbers: frozenset[int]) -> Plan:
        """The same with only these events; their numbers stay what they are."""
        return msgspec.structs.replace(
            self, events=tuple(event for n, event in self.numbered() if n in numbers)
        )

    def numbered(self) -> list[tuple[int, Event]]:
        return list(enumerate(self.events))
