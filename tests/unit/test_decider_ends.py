"""What ends an attempt or a drain, what is left for, and what is asked for then."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drainfsm.core import effects as fx
from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import DURABLE_QUANTILE, SAMPLES_MAX, Sample
from drainfsm.core.deadline import exit_plan_of, kill_by_unix_ms, next_wake_unix_ms
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.core.effects import effects_of
from drainfsm.core.notice import Cause
from drainfsm.core.quantiles import samples_needed
from drainfsm.core.requeue import Capacity, RefusedGeneration, RequeueRecord
from drainfsm.core.state import Phase, generation_id, known, periodic_id
from drainfsm.core.words import CordonOutcome, Verification
from drainfsm.testing.scenario import NOON_UNIX_MS, STORE, Scenario

SAMPLE = Sample(world_size=4, save_bytes=10, store=STORE, durable_ms=1, commit_ms=1)
RECORD = RequeueRecord(
    job_id="job",
    epoch=1,
    cause=Cause.UNKNOWN,
    generation_id=None,
    manifest_digest=None,
    step=None,
    world_size=4,
    capacity=Capacity(node_count=2),
    recorded_unix_ms=0,
)


def asked(s: Scenario, events: tuple[e.Event, ...]) -> list[fx.AnyEffect]:
    return [effect for event in events for effect in effects_of(event, s.state)]


def cause_of(s: Scenario, events: tuple[e.Event, ...]) -> list[Cause]:
    return [one.cause for one in asked(s, events) if isinstance(one, fx.RecordRequeue)]


# --- notices ------------------------------------------------------------------------------------


def test_the_grace_of_a_bare_signal_counts_from_when_it_was_heard() -> None:
    s = Scenario(grace_ms=30_000)
    given = s.notice(in_ms=None)
    s.wait(4_000).when(given)
    assert s.state.current.deadline_unix_ms == NOON_UNIX_MS + 30_000


def test_the_cause_is_that_of_the_earliest_deadline_whichever_came_first() -> None:
    s = Scenario()
    near = replace(s.notice(native_id="near", in_ms=40_000).notice, cause=Cause.SPOT_INTERRUPTION)
    far = replace(s.notice(native_id="far", in_ms=90_000).notice, cause=Cause.HOST_MAINTENANCE)
    for first, second in ((near, far), (far, near)):
        s = Scenario()
        s.given(i.ReceiveNotice(notice=first), i.ReceiveNotice(notice=second))
        assert s.state.current.cause is Cause.SPOT_INTERRUPTION


def test_a_job_leaves_for_hard_notices_and_for_the_earliest_soft_one_that_stands() -> None:
    s = Scenario()
    s.given(
        s.notice(native_id="hard", in_ms=50_000),
        s.notice(native_id="withdrawn", in_ms=30_000, hard=False),
        i.WithdrawNotice(source="spot", native_id="withdrawn", revision=1, reason=""),
        s.notice(native_id="near", in_ms=40_000, hard=False),
        s.notice(native_id="far", in_ms=90_000, hard=False),
    )
    assert s.state.current.left_for == ("spot/hard", "spot/near")


def test_a_notice_given_again_stands_again() -> None:
    s = Scenario()
    s.given(
        s.notice(native_id="hard"),
        s.notice(native_id="soft", hard=False),
        i.WithdrawNotice(source="spot", native_id="soft", revision=1, reason=""),
    )
    assert s.state.current.notices["spot/soft"].withdrawn
    s.when(s.notice(native_id="soft", hard=False, revision=2))
    held = s.state.current.notices["spot/soft"]
    assert (held.withdrawn, held.revision) == (False, 2)


def test_a_late_withdrawal_of_a_revision_before_changes_nothing() -> None:
    s = Scenario()
    taken_back = i.WithdrawNotice(source="spot", native_id="soft", revision=2, reason="")
    s.given(s.notice(), s.notice(native_id="soft", hard=False, revision=2), taken_back)
    s.when(replace(taken_back, revision=1))
    s.then_nothing()
    assert s.state.current.notices["spot/soft"].withdrawn_revision == 2


def test_advice_is_recorded_and_opens_no_drain() -> None:
    s = Scenario()
    advice = replace(s.notice().notice, advisory=True)
    s.when(i.ReceiveNotice(notice=advice))
    s.then(e.NoticeNoted)
    assert s.state.phase is Phase.IDLE


def test_a_withdrawal_is_recorded_once_with_its_reason_and_the_last_one_calls_the_drain_off() -> (
    None
):
    for reason, called_off in (
        ("maintenance moved", "maintenance moved"),
        ("", "every notice was withdrawn"),
    ):
        s = Scenario()
        s.given(s.notice(hard=False), s.notice(native_id="n2", hard=False))
        first = i.WithdrawNotice(source="spot", native_id="n1", reason=reason)
        (withdrawn,) = s.when(first)
        assert isinstance(withdrawn, e.NoticeWithdrawn)
        assert withdrawn.reason == reason
        assert s.when(first) == ()
        _, cancelled = s.when(replace(first, native_id="n2"))
        assert isinstance(cancelled, e.DrainCancelled)
        assert cancelled.reason == called_off


# --- stopping -----------------------------------------------------------------------------------


def test_the_last_rank_to_answer_has_to_do_so_in_time() -> None:
    s = Scenario()
    s.given(s.notice(), s.cordoned())
    hold = known(s.state.current.hold)
    s.wait(hold.quiesce_by_unix_ms - s.now_unix_ms)
    (skipped,) = s.when(s.positions())
    assert isinstance(skipped, e.SaveSkipped)
    assert "0 ms after the wait for it had ended" in skipped.reason
    assert skipped.budget.now_unix_ms == s.now_unix_ms


def test_a_job_of_which_no_process_has_attached_is_not_asked_to_stop() -> None:
    s = Scenario(form_world=False)
    s.when(s.notice())
    given = replace(s.cordoned(), attached=False, detail="by hand", outcome=CordonOutcome.FAILED)
    cordoned, skipped = s.when(given)
    assert isinstance(cordoned, e.NodeCordoned)
    assert isinstance(skipped, e.SaveSkipped)
    assert (cordoned.detail, cordoned.outcome, cordoned.duration_ms) == ("by hand", "failed", 20)
    assert skipped.reason == "no process called drainfsm.attach()"
    assert skipped.budget == cordoned.budget


def test_a_cordon_that_ends_while_the_ranks_leave_is_recorded_and_nobody_is_held() -> None:
    s = Scenario()
    s.given(s.notice(), i.ReportFenced(by_epoch=2))
    assert s.state.phase is Phase.LEAVING
    s.when(s.cordoned())
    s.then(e.NodeCordoned)
    assert s.state.current.hold is None
    s.when(s.cordoned())
    s.then_nothing()


def test_such_a_job_is_killed_when_the_margin_begins_and_not_in_its_middle() -> None:
    for form_world in (False, True):
        s = Scenario(form_world=form_world)
        s.when(s.notice())
        plan = exit_plan_of(s.state)
        kill_by = kill_by_unix_ms(s.state, asked_unix_ms=plan.leave_by_unix_ms)
        assert kill_by == (plan.kill_by_unix_ms if form_world else plan.leave_by_unix_ms)


def test_a_save_that_is_durable_and_never_published_is_waited_for_until_the_margin() -> None:
    s = Scenario().saving()
    s.given(s.staged(), s.durable())
    assert next_wake_unix_ms(s.state) == exit_plan_of(s.state).leave_by_unix_ms


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "cause"), [(0, Cause.FINISHED), (1, Cause.FAILED), (EX_TEMPFAIL, Cause.FAILED)]
)
def test_a_job_that_ends_by_itself_has_finished_or_failed(exit_code: int, cause: Cause) -> None:
    s = Scenario()
    finished = s.when(i.ReportExited(exit_code=exit_code, nodes=()))
    s.then(e.AttemptFinished)
    assert cause_of(s, finished) == [cause]


@pytest.mark.parametrize(
    ("exit_code", "cause"),
    [(0, Cause.FINISHED), (1, Cause.FAILED), (EX_TEMPFAIL, Cause.SPOT_INTERRUPTION)],
)
def test_so_has_one_that_a_drain_did_not_stop(exit_code: int, cause: Cause) -> None:
    s = Scenario()
    s.when(s.notice())
    ended = s.when(i.ReportExited(exit_code=exit_code, nodes=()))
    s.then(e.SaveSkipped, e.Exited)
    assert cause_of(s, ended)[-1] is cause


def test_a_save_that_is_given_up_is_aborted_on_the_ranks() -> None:
    s = Scenario().saving()
    generation = s.generation_id
    given_up = s.when(i.ReportSaveFailed(generation_id=generation, reason="full"))
    assert fx.AbortSave(generation_id=generation) in asked(s, given_up)


def test_a_lost_attempt_leaves_a_record_and_its_ranks_leave_at_once() -> None:
    s = Scenario()
    lost = s.when(i.ReportRanksLost(missing=(), node_lost=True, reason="gone"))
    s.then(e.AttemptLost)
    assert asked(s, lost) == [
        fx.RecordRequeue(cause=Cause.LOST),
        fx.LeaveRanks(kill_by_unix_ms=None),
    ]


def test_an_attempt_that_is_over_hears_no_notice_any_more() -> None:
    for ends in (
        i.ReportExited(exit_code=0, nodes=()),
        i.ReportRanksLost(missing=(), node_lost=True, reason="gone"),
    ):
        s = Scenario()
        s.when(ends)
        s.when(s.notice())
        s.then_nothing()
        advice = replace(s.notice(native_id="advice").notice, advisory=True)
        s.when(i.ReceiveNotice(notice=advice))
        s.then_nothing()


def test_ranks_that_are_lost_without_their_node_are_their_launchers_business() -> None:
    s = Scenario()
    s.when(i.ReportRanksLost(missing=(), node_lost=False, reason="gone"))
    s.then_nothing()


@pytest.mark.parametrize("by_epoch", [1, 2])
def test_an_attempt_is_fenced_by_a_newer_one_alone(by_epoch: int) -> None:
    Scenario(epoch=2).then_refused(i.ReportFenced(by_epoch=by_epoch), match="is not newer than 2")


def test_one_requeue_record_is_recorded() -> None:
    s = Scenario()
    s.when(e.RequeueRecorded(record=RECORD, error=""))
    s.then(e.RequeueRecorded)
    s.when(e.RequeueRecorded(record=replace(RECORD, epoch=7), error="late"))
    s.then_nothing()
    assert s.state.attempt.requeue == RECORD


# --- what was committed -------------------------------------------------------------------------


def committed(step: int) -> e.CheckpointCommitted:
    return e.CheckpointCommitted(
        generation_id=periodic_id(epoch=1, step=step, restart=0),
        manifest_digest="sha256:00",
        slot=step,
        step=step,
        sample=SAMPLE,
    )


def test_a_periodic_commit_is_recorded_once() -> None:
    """Also one that is said again once there is a newer one."""
    s = Scenario()
    for step in (3, 4):
        s.when(committed(step))
        s.then(e.CheckpointCommitted)
    for step in (4, 3):
        s.when(committed(step))
        s.then_nothing()
    newest = s.state.attempt.committed
    assert newest is not None
    assert newest.step == 4


def test_a_commit_of_an_earlier_step_behind_a_restart_is_the_newest() -> None:
    s = Scenario()
    s.when(committed(4))
    s.when(replace(committed(3), slot=5))
    s.then(e.CheckpointCommitted)
    newest = s.state.attempt.committed
    assert newest is not None
    assert newest.step == 3


def test_a_damaged_generation_that_is_said_again_is_not_taken_again() -> None:
    s = Scenario()
    for step in (3, 4):
        s.when(committed(step))
    damaged = RefusedGeneration(generation_id=committed(4).generation_id, reason="checksum")
    s.when(
        e.CheckpointRestored(
            generation_id=committed(3).generation_id,
            manifest_digest="sha256:00",
            step=3,
            restore_ms=1,
            verification=Verification.CHECKSUMS,
            refused=(damaged,),
        )
    )
    s.when(committed(4))
    s.then_nothing()


def test_a_commit_that_the_decision_to_leave_overtook_is_recorded_once() -> None:
    s = Scenario().saving()
    s.given(s.staged(), s.durable(), s.verified())
    published = s.published()
    s.when(i.ReportSaveFailed(generation_id=s.generation_id, reason="slow"))
    (taken,) = s.when(published)
    assert isinstance(taken, e.CheckpointCommitted)
    assert (taken.generation_id, taken.manifest_digest) == (s.generation_id, "sha256:00")
    assert (taken.slot, taken.step) == (2, 101)
    s.when(published)
    s.then_nothing()


def test_what_is_reported_once_an_attempt_is_over_adds_nothing() -> None:
    """Its requeue record is written: a commit that it does not name is found by its successor."""
    s = Scenario().saving()
    s.given(s.staged(), i.ReportSaveFailed(generation_id=s.generation_id, reason="full"))
    s.given(i.ReportExited(exit_code=EX_TEMPFAIL, nodes=()))
    late: tuple[i.AnyInput, ...] = (
        s.staged(),
        s.durable(),
        s.verified(),
        s.published(),
        i.ReportSaveFailed(generation_id=s.generation_id, reason="full"),
        committed(3),
    )
    for given in late:
        s.when(given)
        s.then_nothing()
    s = Scenario().given(i.ReportRanksLost(missing=(), node_lost=True, reason="gone"))
    s.when(committed(3))
    s.then_nothing()


@pytest.mark.parametrize("saved", [False, True])
def test_who_leaves_without_a_save_says_what_is_restored_instead(saved: bool) -> None:
    last = replace(committed(3), sample=replace(SAMPLE, save_bytes=10_000_000))
    expected = (last.generation_id, 3) if saved else (None, None)
    for under_way in (False, True):
        s = Scenario()
        if saved:
            s.when(last)
        if under_way:
            s.saving()
        else:
            s.given(s.notice(), s.cordoned())
        given_up = s.when(i.ReportFenced(by_epoch=2))[-1]
        assert isinstance(given_up, e.SaveAbandoned if under_way else e.SaveSkipped)
        assert (given_up.restore_generation_id, given_up.restore_step) == expected
        assert given_up.reason == "epoch 2 has claimed the job"


def test_every_stage_of_a_save_says_how_long_it_took() -> None:
    s = Scenario().saving()
    (staged,) = s.wait(70).when(s.staged())
    (durable,) = s.wait(300).when(s.durable())
    (verified,) = s.wait(20).when(s.verified())
    (published,) = s.wait(9).when(s.published())
    assert isinstance(staged, e.BytesStaged)
    assert (staged.staged_ms, staged.staged_bytes, staged.rank_count) == (70, 900, 4)
    assert isinstance(durable, e.Durable)
    assert (durable.durable_ms, durable.durable_bytes, durable.file_count) == (370, 1_000, 9)
    assert isinstance(verified, e.EntriesVerified)
    assert (verified.verify_ms, verified.verified_bytes) == (20, 1_000)
    assert (verified.expected_count, verified.verified_count) == (9, 9)
    assert isinstance(published, e.ManifestPublished)
    assert (published.commit_ms, published.slot, published.step) == (29, 2, 101)
    assert (published.world_size, published.manifest_digest) == (4, "sha256:00")
    assert published.sample == Sample(
        world_size=4, save_bytes=1_000, store=STORE, durable_ms=370, commit_ms=29, quiesce_ms=0
    )


@pytest.mark.parametrize(
    ("count", "verified_bytes"), [(8, 1_000), (10, 1_000), (9, 999), (9, 1_001)]
)
def test_files_that_are_not_those_that_were_reported_are_not_published(
    count: int, verified_bytes: int
) -> None:
    s = Scenario().saving()
    s.given(s.staged(), s.durable())
    (given_up,) = s.when(replace(s.verified(count=count), verified_bytes=verified_bytes))
    assert isinstance(given_up, e.SaveAbandoned)
    assert given_up.reason == (
        f"verified {count} of 9 files and {verified_bytes} bytes; "
        "the ranks reported 9 files and 1000 bytes"
    )


def test_a_verification_that_expected_others_than_the_ranks_reported_is_none() -> None:
    s = Scenario().saving()
    s.given(s.staged(), s.durable())
    s.when(replace(s.verified(), expected_count=8))
    s.then(e.SaveAbandoned)


def test_enough_samples_are_kept_for_the_highest_quantile() -> None:
    s = Scenario()
    needed = samples_needed(DURABLE_QUANTILE)
    for step in range(needed):
        s.when(committed(step))
    assert len(s.state.attempt.samples) == needed == 299
    assert needed <= SAMPLES_MAX


def test_ranks_that_train_a_step_again_save_it_elsewhere() -> None:
    names = {periodic_id(epoch=1, step=3, restart=restart) for restart in range(3)}
    assert len(names | {generation_id(epoch=1, step=3, saver="d1")}) == 4


@pytest.mark.parametrize(("verified_after_ms", "commit_ms"), [(30, 120), (0, 57_000)])
def test_what_a_save_took_is_evidence_also_where_it_was_given_up(
    verified_after_ms: int, commit_ms: int
) -> None:
    s = Scenario()
    s.given(s.notice(in_ms=60_000), s.cordoned(), s.positions())
    s.wait(400).given(*s.all_quiesced())
    s.wait(200).given(s.staged())
    s.wait(700).given(s.durable())
    s.wait(verified_after_ms).given(s.verified())
    s.wait(commit_ms - verified_after_ms).given(i.Tick(), s.published())
    phase = Phase.PUBLISHED if verified_after_ms else Phase.LEAVING
    assert s.state.phase is phase
    assert s.state.attempt.samples[-1] == Sample(
        world_size=4,
        save_bytes=1_000,
        store=STORE,
        durable_ms=900,
        commit_ms=commit_ms,
        quiesce_ms=400,
    )
