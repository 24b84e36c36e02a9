"""What no history of evictions and endings can make the policy do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drainfsm.policy import preemption, restarts
from drainfsm.policy.cascade import CHAIN_MAX, cascades
from drainfsm.policy.events import (
    Ended,
    Eviction,
    PastAttempt,
    RestartAction,
    Row,
    Running,
    Waiting,
)
from drainfsm.policy.rules import CascadeRules, PreemptionRules, RestartRules

TIERS = st.sampled_from([tier.name for tier in PreemptionRules().tiers])
INSTANTS = st.integers(0, 10**9)
RUNNING = st.builds(
    Running,
    job_id=st.uuids().map(str),
    tier=TIERS,
    started_unix_ms=INSTANTS,
    capacity=st.integers(1, 8),
    at_risk_ms=INSTANTS,
    evicted_unix_ms=st.lists(INSTANTS, max_size=6).map(tuple),
)
WAITING = st.builds(
    Waiting,
    job_id=st.just("waits"),
    tier=TIERS,
    capacity=st.integers(1, 16),
    exemption=st.sampled_from(["", "the rack must be emptied"]),
)
RULES = st.builds(
    RestartRules,
    free_preemptions=st.integers(0, 5),
    pause_s=st.floats(0, 1e4),
    pause_s_max=st.floats(0, 1e6),
    jitter=st.floats(0, 0.5),
    preemptions_max=st.integers(0, 30),
    failures_max=st.integers(0, 30),
)
PAST = st.builds(
    PastAttempt,
    epoch=st.integers(1, 99),
    ended=st.sampled_from([Ended.PREEMPTED, Ended.LOST]),
    lived_ms=st.integers(0, 600_000),
    progressed=st.sampled_from([None, True, False]),
)
CHANCE = st.floats(0, 1)


@given(WAITING, st.lists(RUNNING, max_size=8), st.integers(0, 16), INSTANTS)
def test_victims_are_lower_enough_unprotected_and_none_too_many(
    waiting: Waiting, running: list[Running], free: int, now: int
) -> None:
    rules = PreemptionRules()
    decision = preemption.decide_preemption(
        waiting, running, rules, free_capacity=free, now_unix_ms=now
    )
    by_name = {job.job_id: job for job in running}
    chosen = [by_name[name] for name in decision.victims]
    assert {spared.job_id for spared in decision.spared} | {*decision.victims} == {*by_name}
    assert not chosen or decision.starts
    for job in chosen:
        assert job.tier in rules.victims_of(waiting.tier)
        recent = [at for at in job.evicted_unix_ms if abs(now - at) < rules.quota_s * 1_000]
        assert len(recent) < rules.evictions_max
        ran_ms = now - job.started_unix_ms
        exempt = waiting.exemption or rules.tier(waiting.tier).ignores_minimum
        assert ran_ms >= rules.minimum_run_s * 1_000 or exempt
        assert (job.job_id in decision.exempted) == (ran_ms < rules.minimum_run_s * 1_000)
        rest = sum(one.capacity for one in chosen) - job.capacity
        assert free + rest < waiting.capacity
    assert preemption.recompute(decision)


@given(st.lists(st.tuples(WAITING, st.integers(1, 3_600_000)), max_size=60))
def test_nobody_is_evicted_more_often_than_the_quota_allows(
    asked: list[tuple[Waiting, int]],
) -> None:
    """So a job of the lowest tier runs, whoever else comes, and however often."""
    rules, now, evicted = PreemptionRules(), 0, list[int]()
    for waiting, apart_ms in asked:
        now += apart_ms
        job = Running(
            job_id="low", tier="batch", started_unix_ms=0, capacity=16,
            evicted_unix_ms=tuple(evicted),
        )  # fmt: skip
        decision = preemption.decide_preemption(
            waiting, [job], rules, free_capacity=0, now_unix_ms=now
        )
        if decision.victims:
            evicted.append(now)
    for last in evicted:
        within = [at for at in evicted if last - rules.quota_s * 1_000 < at <= last]
        assert len(within) <= rules.evictions_max


@given(st.lists(PAST, max_size=40), RULES, CHANCE)
def test_rows_grow_by_one_are_bounded_and_end_only_by_health(
    attempts: list[PastAttempt], rules: RestartRules, chance: float
) -> None:
    row = Row()
    for attempt in attempts:
        decision = restarts.decide_restart(
            row, attempt, rules, job_id="j", chance=chance, now_unix_ms=0
        )
        assert restarts.recompute(decision)
        healthy = restarts.is_healthy(attempt, rules)
        before = Row() if healthy else row
        kinds = (attempt.ended is Ended.PREEMPTED, attempt.ended is Ended.LOST)
        assert decision.row == Row(
            preemption_count=before.preemption_count + kinds[0],
            failure_count=before.failure_count + kinds[1],
        )
        allowed = (
            decision.row.preemption_count <= rules.preemptions_max
            and decision.row.failure_count <= rules.failures_max
        )
        assert (decision.action is RestartAction.RESTART) == allowed
        assert 0 <= decision.pause_ms <= round(rules.pause_s_max * 1_000)
        row = decision.row


@given(RULES, st.integers(1, 200), CHANCE, CHANCE, st.sampled_from([Ended.PREEMPTED, Ended.LOST]))
def test_pauses_grow_until_the_longest_whatever_chance_does(
    rules: RestartRules, count: int, one: float, other: float, ended: Ended
) -> None:
    def pause_ms(number: int, chance: float) -> int:
        lost = ended is Ended.LOST
        row = Row(
            preemption_count=0 if lost else number - 1, failure_count=number - 1 if lost else 0
        )
        attempt = PastAttempt(epoch=number, ended=ended, lived_ms=0)
        endless = RestartRules(
            free_preemptions=rules.free_preemptions,
            pause_s=rules.pause_s,
            pause_s_max=rules.pause_s_max,
            jitter=rules.jitter,
            preemptions_max=10**6,
            failures_max=10**6,
        )
        return restarts.decide_restart(
            row, attempt, endless, job_id="j", chance=chance, now_unix_ms=0
        ).pause_ms

    assert pause_ms(count, one) <= pause_ms(count + 1, one)
    if pause_ms(count + 1, 0) < round(rules.pause_s_max * 1_000):  # not at the longest yet
        assert pause_ms(count, one) <= pause_ms(count + 1, other) + 1


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=60))
def test_a_tree_of_unrelated_drains_is_no_cascade(drains: list[tuple[int, bool]]) -> None:
    """Newcomers evict, and nobody who was evicted does."""
    found = [
        Eviction(at_unix_ms=number, by=f"new-{by}", victim=f"old-{number if once else by}")
        for number, (by, once) in enumerate(drains)
    ]
    assert cascades(found, CascadeRules()) == []


def slowly(evictions: list[Eviction], rules: CascadeRules) -> list[tuple[Eviction, ...]]:
    """Every chain is kept, and looked at for every eviction."""
    chains: list[tuple[Eviction, ...]] = []
    found = []
    for eviction in evictions:
        since = eviction.at_unix_ms - rules.window_s * 1_000
        before: tuple[Eviction, ...] = ()
        for known in chains:
            fresh = tuple(one for one in known if one.at_unix_ms >= since)
            if fresh and fresh[-1].victim == eviction.by and len(fresh) >= len(before):
                before = fresh
        chains.append((*before, eviction))
        if len(chains[-1]) >= rules.hops or eviction.victim in {one.by for one in chains[-1]}:
            found.append(chains[-1])
    return found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_what_is_no_longer_looked_at_would_have_changed_nothing(
    apart: list[tuple[int, int, int]],
) -> None:
    evictions: list[Eviction] = []
    for after_ms, by, victim in apart:
        at = after_ms + (evictions[-1].at_unix_ms if evictions else 0)
        evictions.append(Eviction(at_unix_ms=at, by=f"j{by}", victim=f"j{victim}"))
    rules = CascadeRules(hops=3, window_s=0.02)
    assert [one.chain for one in cascades(evictions, rules)] == slowly(evictions, rules)


def test_ten_thousand_evictions_of_fifty_jobs_are_bounded() -> None:
    many = [
        Eviction(at_unix_ms=number, by=f"j{number % 50}", victim=f"j{(7 * number + 1) % 50}")
        for number in range(10_000)
    ]
    found = cascades(many, CascadeRules())
    assert len(found) > 9_000
    assert max(len(one.chain) for one in found) == CHAIN_MAX


@given(st.integers(2, 8), st.integers(2, 8), st.data())
def test_a_chain_fires_exactly_from_its_last_allowed_hop_on(
    hops: int, length: int, data: st.DataObject
) -> None:
    chain = [Eviction(at_unix_ms=n, by=f"j{n}", victim=f"j{n + 1}") for n in range(length)]
    noise = data.draw(
        st.lists(
            st.integers(0, length).map(
                lambda n: Eviction(at_unix_ms=n, by=f"x{n}", victim=f"y{n}")
            ),
            max_size=10,
        )
    )
    found = cascades([*chain, *noise], CascadeRules(hops=hops))
    assert [len(one.chain) for one in found] == list(range(hops, length + 1))
    assert not any(one.cycle for one in found)
