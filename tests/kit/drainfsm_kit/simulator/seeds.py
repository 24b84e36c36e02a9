"""From a seed to a plan: what the job is like, which notices come, what else happens."""

from __future__ import annotations

import random
from typing import NamedTuple

from msgspec.structs import replace

from drainfsm.core.budget import Allowances
from drainfsm.core.state import Phase
from drainfsm_kit.simulator.plan import Event, GivenNotice, Happening, Plan, World

PHASES = (
    Phase.IDLE,
    Phase.SCHEDULED,
    Phase.NOTICED,
    Phase.QUIESCING,
    Phase.SAVING,
    Phase.STAGED,
    Phase.DURABLE,
    Phase.PUBLISHED,
    Phase.LEAVING,
    Phase.EXITED,
    Phase.CANCELLED,
    Phase.LOST,
)
"""Those in which a record can leave an attempt. (``quiesced`` and ``saving`` are one record.)"""

ANY = (None, None, *PHASES)
EARLY = (None, Phase.IDLE, Phase.SCHEDULED, Phase.NOTICED)
STOPPING = (None, Phase.NOTICED, Phase.QUIESCING, Phase.LEAVING)
SAVING = (None, Phase.NOTICED, Phase.QUIESCING, Phase.SAVING, Phase.SAVING, Phase.STAGED)
COMMITTING = (*SAVING, Phase.STAGED, Phase.DURABLE, Phase.DURABLE, Phase.PUBLISHED)
LEAVING = (Phase.SAVING, Phase.DURABLE, Phase.PUBLISHED, Phase.LEAVING, Phase.IDLE)
LAGS_MS = (0, 0, 1, 3, 10, 30, 100, 500, 2_000)
"""After the phase was reached."""


NOTICE_PHASES = (*ANY, *COMMITTING, Phase.LEAVING, Phase.LEAVING)


DRIFT_PPM_MAX = 120

CALLED_OFF = 0.08
"""Part of the attempts with a drain that is called off while it begins."""

STORMS = 0.12
"""Part of the attempts in which a notice comes in every state."""

STORM_MS = 50_000


WITHDRAWN_MS = (0, 5, 20, 21, 22, 23, 24, 26)
"""After a drain was noticed: about when ranks are held and no stop step is agreed."""


class Kind(NamedTuple):
    """How a class of faults is drawn."""

    weight: int
    """Makes up for how often it hits nothing."""

    phases: tuple[Phase | None, ...]
    longest_ms: int = 0
    largest: int = 0


FAULTS: dict[str, Kind] = {
    "clock_step": Kind(6, ANY, 2, 600_000),
    "delay": Kind(4, ANY, 8_000, 1_500),
    "cut": Kind(10, ANY),
    "silence": Kind(5, ANY, 25_000, 2),
    "broker_away": Kind(4, ANY, 60_000),
    "broker_mute": Kind(5, ANY, 10_000),
    "broker_rollback": Kind(7, ANY, 0, 40),
    "store_away": Kind(5, COMMITTING, 4_000),
    "store_mute": Kind(7, COMMITTING, 6_000),
    "store_late": Kind(5, COMMITTING, 6_000),
    "store_hung": Kind(5, COMMITTING, 30_000),
    "store_slow": Kind(6, COMMITTING, 10_000, 1_500),
    "store_full": Kind(5, SAVING, 8_000),
    "store_lies": Kind(7, SAVING, 8_000),
    "store_stale": Kind(9, (None, *COMMITTING), 4_000),
    "store_garbled": Kind(9, (None, *COMMITTING), 3_000),
    "journal_full": Kind(3, ANY, 20_000),
    "journal_slow": Kind(3, ANY, 10_000, 800),
    "journal_hung": Kind(3, ANY, 15_000),
    "journal_fsync_lies": Kind(6, ANY, 8_000),
    "journal_damaged": Kind(6, ANY, 0, 1_000),
    "store_power": Kind(9, (*ANY, *COMMITTING), 4_000),
    "store_fsync_lies": Kind(6, COMMITTING, 8_000),
    "frame_garbled": Kind(8, ANY, 0, 4),
    "paused": Kind(8, ANY, 30_000),
    "rank_paused": Kind(5, ANY, 20_000),
    "cordon_failed": Kind(7, EARLY, 60_000),
    "cordon_hung": Kind(6, EARLY, 60_000),
    "rank_hung": Kind(4, STOPPING),
    "rank_frozen": Kind(4, STOPPING),
    "rank_dead": Kind(8, ANY),
    "rank_slow": Kind(4, EARLY, 0, 6),
    "rank_busy": Kind(5, EARLY, 15_000, 2),
    "rank_unkillable": Kind(5, ANY),
    "ranks_restarted": Kind(5, EARLY),
    "source_failed": Kind(2, EARLY),
    "agent_dead": Kind(11, ANY),
    "node_lost": Kind(9, ANY),
    "coordinator_dead": Kind(6, ANY),
    "host_lost": Kind(4, ANY),
    "takeover": Kind(12, (*ANY, *COMMITTING)),
    "stopped": Kind(18, (*ANY, *COMMITTING), 60_000),
}


def plan_of(seed: int) -> Plan:
    """The same seed gives the same plan, on every machine."""
    chance = random.Random(f"{seed}/plan")
    world = _world(chance)
    events: list[Event] = []
    for _ in range(chance.choice((0, 1, 2, 4, 6, 9))):
        events.append(_fault(chance, world))
    for attempt in range(1, world.attempts_max + 1):
        events += _notices(chance, world, attempt)
    return Plan(seed=seed, world=world, events=tuple(events))


def _world(chance: random.Random) -> World:
    skew_ms = chance.choice((0, 200, 1_000))
    allowances = Allowances(
        handler_ms=500,
        quiesce_ms=chance.choice((1_500, 4_000)),
        commit_ms=chance.choice((800, 3_000)),
        exit_margin_ms=chance.choice((2_000, 4_000, 8_000)),
        clock_skew_ms=skew_ms,
        store_bytes_per_s=chance.choice((2_000, 10_000)),
        barrier_ms=200,
        schedule_slack_ms=chance.choice((0, 5_000)),
    )
    return World(
        node_count=chance.choice((1, 2, 2, 3)),
        ranks_per_node=chance.choice((1, 2)),
        attempts_max=chance.choice((1, 2, 3, 3)),
        step_ms=chance.choice((150, 400, 900)),
        step_count=chance.choice((60, 150)),
        save_every=chance.choice((0, 6, 20)),
        save_bytes=6_000,
        write_ms=chance.choice((300, 800, 2_500)),
        load_ms=chance.choice((100, 1_500)),
        allowances=allowances,
        grace_ms=chance.choice((6_000, 15_000, 25_000)),
        skews_ms=tuple(chance.randint(-skew_ms * 3 // 4, skew_ms * 3 // 4) for _ in range(16)),
        drifts_ppm=_drifts(chance, skew_ms),
        same_disk=chance.random() < 0.8,
        broker_leaks=chance.random() < 0.7,
        end_ms=chance.choice((30_000, 50_000, 50_000, 80_000)),
    )


def _drifts(chance: random.Random, skew_ms: int) -> tuple[int, ...]:
    """Within what a crystal does, and what is allowed for all that clocks are off by."""
    if not skew_ms or chance.random() < 0.5:
        return (0,)
    return tuple(chance.randint(-DRIFT_PPM_MAX, DRIFT_PPM_MAX) for _ in range(16))


def _when(chance: random.Random, phases: tuple[Phase | None, ...]) -> tuple[Phase | None, int]:
    phase = chance.choice(phases)
    return phase, chance.randint(0, 20_000) if phase is None else chance.choice(LAGS_MS)


def _fault(chance: random.Random, world: World) -> Happening:
    (what,) = chance.choices(list(FAULTS), [kind.weight for kind in FAULTS.values()])
    kind = FAULTS[what]
    phase, after_ms = _when(chance, kind.phases)
    return Happening(
        what=what,
        attempt=min(chance.randint(1, 3), chance.randint(1, world.attempts_max)),
        phase=phase,
        after_ms=after_ms,
        node=chance.randrange(world.node_count),
        rank=chance.randrange(world.ranks_per_node),
        for_ms=chance.randint(kind.longest_ms // 10, kind.longest_ms),
        amount=chance.randint(1, kind.largest) if kind.largest else 0,
    )


def _notices(chance: random.Random, world: World, attempt: int) -> list[GivenNotice]:
    """Most attempts get one that opens a drain, some get more of them at any time."""
    if chance.random() < CALLED_OFF:
        return _called_off(chance, world, attempt)
    events: list[GivenNotice] = []
    if chance.random() < 0.85:
        at_ms = chance.randint(0, 15_000)
        events.append(_notice(chance, world, attempt, when=(None, at_ms), withdraw=False))
    for _ in range(chance.choice((0, 0, 1, 2, 4))):
        withdraw = chance.random() < 0.35
        when = _when(chance, NOTICE_PHASES)
        if withdraw:
            phase = chance.choice((Phase.SCHEDULED, Phase.SCHEDULED, Phase.NOTICED, when[0]))
            when = (phase, chance.choice(WITHDRAWN_MS) if phase is Phase.NOTICED else when[1])
        notice = _notice(chance, world, attempt, when=when, withdraw=withdraw)
        soft = [event for event in events if not event.hard and not event.withdraw]
        if withdraw and soft:
            meant = chance.choice(soft)
            notice = replace(
                notice, what=meant.what, native_id=meant.native_id, node=meant.node, hard=False
            )
        events.append(notice)
    if chance.random() < STORMS:
        events += _storm(chance, world, attempt)
    return events


def _called_off(chance: random.Random, world: World, attempt: int) -> list[GivenNotice]:
    """One that is taken back while the ranks are asked to stop."""
    when = (None, chance.randint(3_000, 10_000))
    notice = _notice(chance, world, attempt, when=when, withdraw=False)
    notice = replace(notice, what="platform", hard=False, in_ms=12_000, times=1)
    after_ms = chance.choice(WITHDRAWN_MS)
    return [notice, replace(notice, phase=Phase.NOTICED, after_ms=after_ms, withdraw=True)]


def _storm(chance: random.Random, world: World, attempt: int) -> list[GivenNotice]:
    """One in every state, with a deadline that changes little."""
    storm: list[GivenNotice] = []
    for phase in PHASES:
        when, withdraw = (phase, chance.choice(LAGS_MS[:4])), chance.random() < 0.3
        notice = _notice(chance, world, attempt, when=when, withdraw=withdraw)
        storm.append(replace(notice, in_ms=None if notice.in_ms is None else STORM_MS))
    return storm


def _notice(
    chance: random.Random,
    world: World,
    attempt: int,
    *,
    when: tuple[Phase | None, int],
    withdraw: bool,
) -> GivenNotice:
    what = chance.choice(("platform", "platform", "notify", "notify", "signal"))
    if withdraw and what == "signal":
        what = "platform"
    hard = what == "signal" or chance.random() < 0.45
    in_ms = chance.choice((-2_000, 300, 4_000, 12_000, 25_000, 25_000, 40_000, None))
    if what == "signal":
        in_ms = None
    elif not hard and in_ms is not None and in_ms < 12_000:
        in_ms = 55_000
    return GivenNotice(
        what=what,
        attempt=attempt,
        phase=when[0],
        after_ms=when[1],
        node=chance.randrange(world.node_count),
        native_id=chance.choice("aab"),
        hard=hard,
        in_ms=in_ms,
        skew_ms=chance.choice((0, 0, 700)),
        withdraw=withdraw,
        times=chance.choice((1, 1, 2, 3)),
    )
