"""One test a rule of the decider: given an attempt and its inputs, when one more, then events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import Allowances, Budget
from drainfsm.core.deadline import next_wake_unix_ms, window_budget
from drainfsm.core.decider import decide
from drainfsm.core.fold import evolve
from drainfsm.core.rules import broken_rules
from drainfsm.core.state import Phase, first_state, known
from drainfsm.errors import EventRefusedError, InputRejectedError, NoticeRejectedError
from drainfsm.testing.scenario import NOON_UNIX_MS, Scenario

DAY_MS = 86_400_000
PLAIN = Allowances(
    quiesce_ms=5_000, commit_ms=3_000, exit_margin_ms=5_000, clock_skew_ms=500, barrier_ms=1_000
)


def kinds(events: tuple[e.Event, ...]) -> list[str]:
    return [e.kind_of(event) for event in events]


def test_a_drain_that_goes_well_passes_every_state_in_order() -> None:
    s = Scenario()
    assert kinds(s.when(s.notice())) == ["notice_received"]
    assert kinds(s.when(s.cordoned())) == ["node_cordoned"]
    assert kinds(s.when(s.positions())) == ["stop_step_agreed"]
    assert kinds(s.when(s.quiesced(0))) == ["rank_quiesced"]
    assert kinds(s.when(s.quiesced(1))) == [
        "rank_quiesced",
        "ranks_quiesced",
        "save_decided",
        "save_started",
    ]
    assert kinds(s.when(s.staged())) == ["bytes_staged"]
    assert kinds(s.when(s.durable())) == ["durable"]
    assert kinds(s.when(s.verified())) == ["entries_verified"]
    assert s.when(s.verified()) == (), "said again"
    assert kinds(s.when(s.published())) == ["manifest_published"]
    assert kinds(s.when(i.ReportExited(exit_code=75, nodes=()))) == ["exited"]
    assert s.state.phase is Phase.EXITED
    assert broken_rules(s.history) == []


def test_the_stop_step_is_the_highest_reported_step_plus_one() -> None:
    s = Scenario()
    s.given(s.notice(), s.cordoned(), s.positions(step=41))
    assert known(s.state.stop).step == 42


def test_a_second_notice_of_the_same_identity_adds_nothing() -> None:
    s = Scenario()
    s.given(s.notice(in_ms=60_000))
    assert s.when(s.notice(in_ms=60_000)) == ()


def test_a_bare_signal_that_comes_twice_is_one_notice() -> None:
    s = Scenario(grace_ms=30_000)
    s.given(s.notice(in_ms=None))
    assert s.wait(1).when(s.notice(in_ms=None)) == ()
    assert s.state.current.deadline_unix_ms == NOON_UNIX_MS + 30_000


def test_an_earlier_deadline_is_adopted_and_a_later_one_only_recorded() -> None:
    s = Scenario()
    s.given(s.notice(in_ms=60_000))
    later = s.when(s.notice(in_ms=90_000, native_id="n2"))
    assert kinds(later) == ["notice_received"]
    assert s.state.current.deadline_unix_ms == NOON_UNIX_MS + 60_000
    earlier = s.when(s.notice(in_ms=40_000, native_id="n3"))
    assert kinds(earlier) == ["notice_received", "deadline_shortened"]
    assert s.state.current.deadline_unix_ms == NOON_UNIX_MS + 40_000


STATES = ["noticed", "held", "quiescing", "saving", "staged", "durable", "verified", "published"]


def _at(state: str) -> Scenario:
    """A drain of 60 s brought to the state."""
    s = Scenario(allowances=PLAIN)
    steps: list[Callable[[], i.AnyInput]] = [
        lambda: s.notice(in_ms=60_000),
        s.cordoned,
        s.positions,
        lambda: s.quiesced(0),
        s.staged,
        s.durable,
        s.verified,
        s.published,
    ]
    for step in steps[: STATES.index(state) + 1]:
        s.when(step())
        if state != "quiescing" and step is steps[3]:
            s.when(s.quiesced(1))
    return s


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("in_ms", [60_000, 90_000, 55_000], ids=["same", "later", "earlier"])
def test_second_and_third_notices_at_every_state_never_start_another_save(
    state: str, in_ms: int
) -> None:
    s = _at(state)
    before = s.state
    for native_id in ("n2", "n3"):
        s.when(s.notice(in_ms=in_ms, native_id=native_id))
    assert s.state.phase is before.phase, "55 s are plenty: nothing is given up"
    assert s.state.current.deadline_unix_ms == NOON_UNIX_MS + min(60_000, in_ms)
    saves = [one for r in s.history for one in r.events if isinstance(one, e.SaveStarted)]
    assert len(saves) <= 1
    assert broken_rules(s.history) == []


@pytest.mark.parametrize(
    ("state", "ends"),
    [
        ("noticed", "noticed"),
        ("held", "leaving"),
        ("quiescing", "leaving"),
        ("saving", "leaving"),
        ("staged", "leaving"),
        ("durable", "leaving"),
        ("verified", "leaving"),
        ("published", "published"),
    ],
)
def test_a_shrink_below_what_is_needed_gives_the_save_up(state: str, ends: str) -> None:
    s = _at(state)
    s.when(s.notice(in_ms=5_400, native_id="n2"))
    assert s.state.phase == ends
    assert broken_rules(s.history) == []


def test_a_save_that_does_not_fit_at_the_notice_is_skipped_after_the_cordon() -> None:
    s = Scenario(allowances=PLAIN, save_bytes=100_000_000)  # sized at 2 s
    s.given(s.notice(in_ms=5_000 + 2_000 + 3_000 + 5_000 + 500))
    (cordoned, skipped) = s.when(s.cordoned())
    assert isinstance(cordoned, e.NodeCordoned)
    assert isinstance(skipped, e.SaveSkipped)
    assert skipped.reason == (
        "remaining 15000 ms is not more than quiesce 5000 + durable 2000 + commit 3000 "
        "+ exit 5000 = 15000 ms"
    )
    assert s.state.phase is Phase.LEAVING


def test_one_millisecond_more_and_it_is_tried() -> None:
    s = Scenario(allowances=PLAIN, save_bytes=100_000_000)
    s.given(s.notice(in_ms=5_000 + 2_000 + 3_000 + 5_000 + 500 + 1))
    assert kinds(s.when(s.cordoned())) == ["node_cordoned"]


def test_the_rule_is_evaluated_again_after_quiesce() -> None:
    s = Scenario(allowances=PLAIN, save_bytes=100_000_000)
    s.given(s.notice(in_ms=15_501), s.cordoned(), s.positions(), s.quiesced(0))
    s.wait(5_001)
    events = s.when(s.quiesced(1))
    assert kinds(events) == ["rank_quiesced", "ranks_quiesced", "save_skipped"]
    skipped = events[-1]
    assert isinstance(skipped, e.SaveSkipped)
    assert skipped.reason == (
        "remaining 10000 ms is not more than durable 2000 + commit 3000 + exit 5000 = 10000 ms"
    )
    assert skipped.budget.now_unix_ms == s.now_unix_ms


def test_ranks_that_do_not_stop_are_named_and_nothing_is_saved() -> None:
    s = Scenario(allowances=PLAIN)
    s.given(s.notice(), s.cordoned(), s.positions(), s.quiesced(0)).wait(5_000)
    missing = (e.MissingRank(rank=3, node=1, last_step=100, phase="train"),)
    timed_out, skipped = s.when(i.Tick(missing=missing))
    assert isinstance(timed_out, e.QuiesceTimedOut)
    assert timed_out.missing == missing
    assert isinstance(skipped, e.SaveSkipped)
    assert skipped.reason == "rank 3 of node 1 (train) did not stop in time"


def test_of_many_ranks_that_do_not_stop_eight_are_named_and_all_are_recorded() -> None:
    s = Scenario(allowances=PLAIN, ranks_per_node=5)
    s.given(s.notice(), s.cordoned(), s.positions(), s.quiesced(0)).wait(5_000)
    missing = tuple(e.MissingRank(rank=n, node=1, last_step=100, phase="train") for n in range(9))
    timed_out, skipped = s.when(i.Tick(missing=missing))
    assert isinstance(timed_out, e.QuiesceTimedOut)
    assert timed_out.missing == missing
    assert isinstance(skipped, e.SaveSkipped)
    assert skipped.reason.count("(train)") == 8


def test_the_wait_for_ranks_ends_where_the_save_would_no_longer_fit() -> None:
    s = Scenario(allowances=PLAIN, save_bytes=100_000_000)
    s.given(s.notice(in_ms=15_501))
    s.given(s.cordoned())
    assert next_wake_unix_ms(s.state) == NOON_UNIX_MS + 5_000
    s.when(s.notice(in_ms=13_000, native_id="n2"))
    assert next_wake_unix_ms(s.state) == NOON_UNIX_MS + 13_000 - 500 - 2_000 - 3_000 - 5_000


def test_a_rank_in_a_long_evaluation_is_answered_early() -> None:
    s = Scenario(allowances=PLAIN)
    s.given(s.notice(), s.cordoned())
    (skipped,) = s.when(s.positions(busy_for_ms=60_000))
    assert isinstance(skipped, e.SaveSkipped)
    assert "in eval for another 60000 ms" in skipped.reason


def test_a_stop_step_that_is_not_reachable_in_time_is_not_agreed() -> None:
    s = Scenario(allowances=PLAIN)
    s.given(s.notice(), s.cordoned())
    assert kinds(s.when(s.positions(step_ms=30_000))) == ["save_skipped"]


def test_who_could_hold_only_when_a_save_no_longer_fits_is_not_waited_for() -> None:
    """50,400 ms are left for the ranks: at their end the rule, which is strict, fails."""
    told = (
        ({"busy_for_ms": 50_400}, "eval for another 50400"),
        ({"step_ms": 25_200}, "2 step(s) of 25200"),
    )
    for late, says in told:
        s = Scenario(allowances=PLAIN)
        s.given(s.notice(), s.cordoned())
        (skipped,) = s.when(s.positions(**late))
        assert isinstance(skipped, e.SaveSkipped)
        assert says in skipped.reason
        assert "cannot quiesce within 50400 ms" in skipped.reason
    for in_time in ({"busy_for_ms": 50_399}, {"step_ms": 25_199}):
        s = Scenario(allowances=PLAIN)
        s.given(s.notice(), s.cordoned())
        assert kinds(s.when(s.positions(**in_time))) == ["stop_step_agreed"]


@pytest.mark.parametrize(
    ("step_ms", "waits_ms"), [(50, 5_000), (8_000, 20_000), (8_001, 20_002), (22_000, 50_400)]
)
def test_ranks_with_long_steps_are_waited_for_as_long_as_the_save_fits(
    step_ms: int, waits_ms: int
) -> None:
    """The allowance is what is waited at least; the window has a minute."""
    s = Scenario(allowances=PLAIN)
    s.given(s.notice(), s.cordoned())
    (agreed,) = s.when(s.positions(step_ms=step_ms))
    assert isinstance(agreed, e.StopStepAgreed)
    assert agreed.quiesce_by_unix_ms == next_wake_unix_ms(s.state) == NOON_UNIX_MS + waits_ms
    s.wait(waits_ms - 1)
    assert s.when(i.Tick()) == ()
    assert "quiesce_timed_out" in kinds(s.wait(1).when(i.Tick()))


def test_a_scheduled_drain_begins_early_enough_for_the_steps_of_its_ranks() -> None:
    times = []
    for step_ms in (0, 2_500, 60_000):
        s = Scenario(allowances=PLAIN)
        s.given(replace(s.notice(in_ms=3_600_000, hard=False), step_ms=step_ms))
        times.append(next_wake_unix_ms(s.state) or 0)
    assert times[0] == times[1] == times[2] + 2 * 60_000 - PLAIN.quiesce_ms


def test_whether_a_window_is_long_enough_is_known_before_any_notice() -> None:
    attempt = Scenario(allowances=PLAIN).state.attempt
    assert window_budget(attempt, step_ms=100).fits
    budget = window_budget(attempt, step_ms=60_000)
    assert not budget.fits
    assert budget.remaining_ms == attempt.grace_ms - PLAIN.clock_skew_ms
    assert budget.quiesce is not None
    assert (budget.quiesce.value_ms, budget.quiesce.basis) == (120_000, "step_times")


def test_a_save_whose_commit_no_longer_fits_is_abandoned_by_time_alone() -> None:
    s = Scenario(allowances=PLAIN).saving(in_ms=60_000)
    s.given(s.staged())
    assert next_wake_unix_ms(s.state) == NOON_UNIX_MS + 60_000 - 500 - 3_000 - 5_000
    s.wait(60_000 - 8_500 - 1)
    assert s.when(i.Tick()) == ()
    (abandoned,) = s.wait(1).when(i.Tick())
    assert isinstance(abandoned, e.SaveAbandoned)
    assert abandoned.reason == (
        "remaining 8000 ms is not more than commit 3000 + exit 5000 = 8000 ms"
    )
    assert s.state.phase is Phase.LEAVING


def test_durable_too_late_for_the_commit_is_abandoned() -> None:
    s = Scenario(allowances=PLAIN).saving(in_ms=60_000)
    s.given(s.staged()).wait(51_500)
    assert kinds(s.when(s.durable())) == ["save_abandoned"]


def test_nothing_is_published_unless_every_file_was_verified() -> None:
    s = Scenario().saving()
    s.given(s.staged(), s.durable())
    with pytest.raises(InputRejectedError, match="not verified"):
        s.when(s.published())
    assert kinds(s.when(s.verified(count=8))) == ["save_abandoned"]


def test_bytes_of_fewer_ranks_than_the_world_are_refused() -> None:
    s = Scenario().saving()
    with pytest.raises(InputRejectedError, match="3 rank"):
        s.when(i.ReportStaged(generation_id=s.generation_id, staged_bytes=1, rank_count=3))


def test_a_commit_that_was_overtaken_by_the_decision_to_leave_is_still_recorded() -> None:
    s = Scenario(allowances=PLAIN).saving(in_ms=60_000)
    s.given(s.staged(), s.durable(), s.verified()).wait(54_500)
    assert kinds(s.when(i.Tick())) == ["save_abandoned"]
    assert kinds(s.when(s.published())) == ["checkpoint_committed"]
    assert s.state.attempt.committed is not None
    assert s.state.attempt.committed.generation_id == s.generation_id


def test_a_full_disk_while_saving_abandons_and_names_it() -> None:
    s = Scenario().saving()
    (abandoned,) = s.when(
        i.ReportSaveFailed(generation_id=s.generation_id, reason="rank 2: no space left")
    )
    assert isinstance(abandoned, e.SaveAbandoned)
    assert abandoned.reason == "rank 2: no space left"


def test_a_soft_notice_far_ahead_waits_for_the_latest_safe_start() -> None:
    s = Scenario(allowances=PLAIN, save_bytes=0)
    s.given(s.notice(in_ms=600_000, hard=False))
    assert s.state.phase == "scheduled"
    needed_ms = 5_000 + 1_000 + 3_000 + 5_000
    start = NOON_UNIX_MS + 600_000 - 500 - needed_ms - PLAIN.schedule_slack_ms
    assert next_wake_unix_ms(s.state) == start
    s.wait(start - NOON_UNIX_MS)
    assert kinds(s.when(i.Tick())) == ["drain_due"]
    assert s.state.phase == "noticed"


def test_a_hard_notice_makes_a_scheduled_drain_due() -> None:
    s = Scenario()
    s.given(s.notice(in_ms=600_000, hard=False))
    events = s.when(s.notice(in_ms=500_000, native_id="n2"))
    assert kinds(events) == ["notice_received", "deadline_shortened", "drain_due"]
    assert isinstance(events[-1], e.DrainDue)
    assert events[-1].reason == "hard notice"


def test_a_soft_notice_that_leaves_no_time_to_wait_makes_a_scheduled_drain_due() -> None:
    s = Scenario(allowances=PLAIN)
    s.given(s.notice(in_ms=600_000, hard=False))
    s.wait(1_000)
    events = s.when(s.notice(in_ms=20_000, native_id="n2", hard=False))
    assert kinds(events) == ["notice_received", "deadline_shortened", "drain_due"]
    due = events[-1]
    assert isinstance(due, e.DrainDue)
    assert due.reason == "latest safe start"
    assert (due.budget.now_unix_ms, due.budget.deadline_unix_ms) == (
        s.now_unix_ms,
        s.now_unix_ms + 20_000,
    )
    assert broken_rules(s.history) == []


def test_the_largest_clock_skew_of_any_notice_counts_for_all_of_them() -> None:
    s = Scenario(allowances=PLAIN)
    for native_id, skew_ms, counted_ms in (("n1", 900, 900), ("n2", 200, 900), ("n3", 901, 901)):
        given = s.notice(native_id=native_id, clock_skew_ms=skew_ms)
        received = s.when(given)[0]
        assert isinstance(received, e.NoticeReceived)
        assert received.budget.clock_skew_ms == s.state.current.clock_skew_ms == counted_ms
        assert s.when(given) == (), "a repeat"


def test_a_moved_deadline_shortens_the_wait_for_ranks_and_never_lengthens_it() -> None:
    s = Scenario(allowances=PLAIN)
    s.given(s.notice(), s.cordoned())
    hold = s.state.current.hold
    s.given(s.notice(in_ms=50_000, native_id="n2"))
    assert s.state.current.hold == hold, "there is still time for it"


def test_with_the_last_soft_notice_withdrawn_the_drain_is_cancelled_and_another_may_open() -> None:
    s = Scenario()
    s.given(s.notice(in_ms=600_000, hard=False))
    s.given(s.notice(in_ms=700_000, hard=False, native_id="n2"))
    first = i.WithdrawNotice(source="spot", native_id="n1")
    second = i.WithdrawNotice(source="spot", native_id="n2")
    assert kinds(s.when(first)) == ["notice_withdrawn"]
    assert s.state.current.deadline_unix_ms == NOON_UNIX_MS + 600_000, "min over all ever accepted"
    assert kinds(s.when(second)) == ["notice_withdrawn", "drain_cancelled"]
    assert kinds(s.when(s.notice(in_ms=900_000, hard=False))) == [], (
        "a repeat of what was taken back"
    )
    anew = s.notice(in_ms=900_000, hard=False, revision=2)
    assert kinds(s.when(anew)) == ["notice_received"]
    assert s.state.current.drain_id == "job/1/2"
    assert s.state.current.deadline_unix_ms == NOON_UNIX_MS + 900_000


def test_a_withdrawal_after_the_stop_step_was_agreed_changes_nothing() -> None:
    s = Scenario()
    s.given(s.notice(in_ms=40_000, hard=False), s.cordoned(), s.positions())
    s.when(i.WithdrawNotice(source="spot", native_id="n1"))
    assert s.state.phase is Phase.QUIESCING


def test_a_hard_notice_cannot_be_withdrawn() -> None:
    s = Scenario()
    s.given(s.notice())
    with pytest.raises(InputRejectedError, match="HARD"):
        s.when(i.WithdrawNotice(source="spot", native_id="n1"))


@pytest.mark.parametrize(
    ("in_ms", "hard"), [(367 * DAY_MS, True), (-DAY_MS - 1, True), (-1, False), (0, False)]
)
def test_deadlines_that_make_no_sense_are_refused_and_change_nothing(
    in_ms: int, hard: bool
) -> None:
    s = Scenario()
    with pytest.raises(NoticeRejectedError, match="n1"):
        s.when(s.notice(in_ms=in_ms, hard=hard))
    assert s.state.phase is Phase.IDLE


def test_a_hard_notice_that_comes_after_its_deadline_leaves_at_once() -> None:
    s = Scenario()
    s.given(s.notice(in_ms=-3_000))
    assert kinds(s.when(s.cordoned())) == ["node_cordoned", "save_skipped"]


def test_whatever_is_stuck_the_drain_ends_by_its_deadline() -> None:
    s = Scenario(allowances=PLAIN)
    s.given(s.notice(in_ms=60_000))
    for _ in range(6):
        wake = next_wake_unix_ms(s.state)
        if wake is None:
            break
        s.wait(wake - s.now_unix_ms).when(i.Tick())
    assert s.state.phase is Phase.EXITED
    assert s.now_unix_ms == NOON_UNIX_MS + 60_000 - 500


def test_a_fenced_attempt_gives_up_and_is_lost() -> None:
    s = Scenario()
    assert kinds(s.when(i.ReportFenced(by_epoch=2))) == ["attempt_fenced", "attempt_lost"]
    s = Scenario().saving()
    assert kinds(s.when(i.ReportFenced(by_epoch=2))) == ["attempt_fenced", "save_abandoned"]


def test_an_attempt_that_has_finished_is_not_lost_when_a_newer_one_claims() -> None:
    s = Scenario().given(i.ReportExited(exit_code=0, nodes=()))
    assert kinds(s.when(i.ReportFenced(by_epoch=2))) == ["attempt_fenced"]
    assert s.state.phase is Phase.IDLE


def test_one_that_was_lost_already_is_fenced_and_nothing_else() -> None:
    s = Scenario().given(i.ReportRanksLost(missing=(), node_lost=True, reason="gone"))
    assert s.state.phase is Phase.LOST
    assert kinds(s.when(i.ReportFenced(by_epoch=2))) == ["attempt_fenced"]


def test_a_commit_of_what_was_not_verified_is_refused_in_every_state() -> None:
    s = Scenario().saving()
    s.when(i.ReportSaveFailed(generation_id=s.generation_id, reason="disk full"))
    assert s.state.phase is Phase.LEAVING
    with pytest.raises(InputRejectedError, match="not verified"):
        s.when(s.published())


def test_ranks_that_die_while_quiescing_are_named() -> None:
    s = Scenario()
    s.given(s.notice(), s.cordoned(), s.positions())
    missing = (e.MissingRank(rank=3, node=1, last_step=99, phase="lost"),)
    report = i.ReportRanksLost(missing=missing, node_lost=False, reason="rank 3 died")
    assert kinds(s.when(report)) == ["quiesce_timed_out", "save_skipped"]


def test_ranks_that_die_after_their_bytes_are_durable_do_not_matter() -> None:
    s = Scenario().saving()
    s.given(s.staged(), s.durable())
    assert s.when(i.ReportRanksLost(missing=(), node_lost=True, reason="node 1 lost")) == ()
    s.given(s.verified(), s.published())
    assert s.state.phase is Phase.PUBLISHED


def test_an_event_that_the_table_does_not_allow_is_refused_and_changes_nothing() -> None:
    s = Scenario()
    before = s.state
    with pytest.raises(EventRefusedError, match="drain_due is not allowed in state idle"):
        evolve(s.state, e.DrainDue(reason="", budget=_budget()))
    assert s.state == before


def _budget() -> Budget:
    s = _at("held")
    (record,) = [r for r in s.history if isinstance(r.events[0], e.NodeCordoned)]
    event = record.events[0]
    assert isinstance(event, e.NodeCordoned)
    return event.budget


def test_nothing_is_accepted_before_the_attempt_started() -> None:
    with pytest.raises(InputRejectedError, match="has not started"):
        decide(first_state(job_id="job", epoch=1), i.Tick(), now_unix_ms=NOON_UNIX_MS)


def test_a_late_report_of_a_drain_that_was_called_off_is_not_taken_for_the_next_ones() -> None:
    s = Scenario()
    s.given(s.notice(hard=False), i.WithdrawNotice(source="spot", native_id="n1"))
    called_off = s.state.current.drain_id
    s.given(s.notice(native_id="n2"))
    assert s.when(replace(s.cordoned(), drain_id=called_off)) == ()
    s.given(replace(s.cordoned(), drain_id=s.state.current.drain_id))
    assert s.when(replace(s.positions(step=7), drain_id=called_off)) == ()
    assert kinds(s.when(s.positions(step=100))) == ["stop_step_agreed"]
    assert known(s.state.stop).step == 101


def test_a_world_is_formed_once_and_again_when_its_ranks_are_restarted_or_others() -> None:
    scenario = Scenario(form_world=False)

    def form(world_size: int, save_bytes: int, restart: int = 0) -> tuple[e.Event, ...]:
        given = i.FormWorld(world_size=world_size, save_bytes=save_bytes, restart=restart)
        return scenario.when(given)

    assert form(4, 0) == (e.WorldFormed(world_size=4, save_bytes=0),)
    assert form(4, 0) == ()
    assert form(4, 7) == (e.CheckpointSized(save_bytes=7),)
    assert form(4, 7) == ()
    assert form(4, 8) == (e.CheckpointSized(save_bytes=8),)
    again = e.WorldFormed(world_size=4, save_bytes=8, restart=1)
    assert form(4, 0, 1) == (again,), "until they say otherwise, as large as before"
    assert form(4, 8, 1) == ()
    assert form(2, 0, 2) == (e.WorldFormed(world_size=2, save_bytes=0, restart=2),)
    assert (scenario.state.attempt.world_size, scenario.state.attempt.restart) == (2, 2)
