"""The fence in the fold: which records count, and that a refused one changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import pytest

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import SAMPLES_MAX, Allowances, Sample
from drainfsm.core.decider import decide
from drainfsm.core.effects import (
    AnyEffect,
    HoldRanks,
    LeaveRanks,
    RecordRequeue,
    ResumeTraining,
    effects_of,
)
from drainfsm.core.fold import Fold, evolve
from drainfsm.core.handlers import EVENT_HANDLERS
from drainfsm.core.inputs import AnyInput
from drainfsm.core.lifecycle import TABLE
from drainfsm.core.notice import Cause
from drainfsm.core.records import Record
from drainfsm.core.requeue import Capacity, RefusedGeneration, RequeueRecord
from drainfsm.core.state import ACTIVE, Committed, Drain, State, first_state, known
from drainfsm.core.words import Verification
from drainfsm.errors import EventRefusedError, RecordUnreadableError
from drainfsm.testing.scenario import STORE, Scenario

replace = msgspec.structs.replace
F = TypeVar("F", bound=e.Fact)


def _fold(records: list[Record]) -> Fold:
    fold = Fold(job_id="job", epoch=1)
    for record in records:
        fold.read(record)
    return fold


def _history() -> list[Record]:
    return Scenario().saving().history


def test_a_record_that_stands_elsewhere_is_skipped_and_nothing_behind_it_is_lost() -> None:
    history = _history()
    stale = replace(history[3], id="stale")
    fold = _fold([*history[:4], stale, history[3], history[4]])
    assert fold.skipped == 2
    assert fold.position == 5
    assert fold.state == _fold(history[:5]).state


def test_a_record_whose_id_was_seen_is_skipped_for_ever_wherever_it_stands() -> None:
    history = _history()
    fold = _fold([*history[:3], replace(history[2], follows=3)])
    assert (fold.skipped, fold.position) == (1, 3)


def test_a_record_of_another_epoch_or_job_is_skipped() -> None:
    history = _history()
    for changed in (replace(history[2], epoch=2), replace(history[2], job_id="other")):
        fold = _fold([*history[:2], changed])
        assert fold.skipped == 1
        assert fold.state == _fold(history[:2]).state


def test_many_records_at_once_are_folded_as_one_by_one() -> None:
    history = _history()
    stale, foreign = replace(history[3], id="stale"), replace(history[4], job_id="other")
    records = [history[0], *history[:4], stale, foreign, *history[4:]]
    one_by_one = Fold(job_id="job", epoch=1)
    counted = [one_by_one.read(record) for record in records]
    at_once = Fold(job_id="job", epoch=1)
    assert at_once.read_all(iter(records)) == sum(counted) == len(history)
    assert (at_once.state, at_once.position, at_once.skipped) == (
        one_by_one.state,
        one_by_one.position,
        one_by_one.skipped,
    )
    state = first_state(job_id="job", epoch=1)
    for event in [event for record in history for event in record.events]:
        state = evolve(state, event)
    assert at_once.state == state


def test_what_stands_before_a_refused_record_is_folded() -> None:
    history = _history()
    bad = replace(history[2], events=(*history[2].events, e.AttemptFinished(exit_code=0)))
    fold = Fold(job_id="job", epoch=1)
    with pytest.raises(EventRefusedError, match="attempt_finished"):
        fold.read_all([*history[:2], bad, *history[3:]])
    assert fold.state == _fold(history[:2]).state
    assert fold.position == 3


def test_a_log_that_breaks_off_is_folded_up_to_there() -> None:
    history = _history()

    def damaged() -> Iterator[Record]:
        yield from history[:3]
        raise RecordUnreadableError("damage")

    fold = Fold(job_id="job", epoch=1)
    with pytest.raises(RecordUnreadableError):
        fold.read_all(damaged())
    assert (fold.state, fold.position) == (_fold(history[:3]).state, 3)


def test_a_record_with_a_refused_event_changes_nothing_at_all() -> None:
    history = _history()
    notice = history[2]
    bad = replace(
        notice, events=(*notice.events, e.RanksQuiesced(step=1, rank_count=4, quiesce_ms=0))
    )
    fold = _fold(history[:2])
    before = fold.state
    with pytest.raises(EventRefusedError, match="ranks_quiesced"):
        fold.read(bad)
    assert fold.state == before


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"verified_count": 8, "expected_count": 8}, "covers every file"),
        ({"generation_id": "other"}, "covers every file"),
    ],
)
def test_the_table_itself_refuses_an_incomplete_verification(
    changed: dict[str, object], why: str
) -> None:
    s = Scenario().saving()
    s.given(s.staged(), s.durable())
    event = e.EntriesVerified(
        generation_id=s.generation_id,
        expected_count=9,
        verified_count=9,
        verified_bytes=1_000,
        verify_ms=1,
    )
    assert known(evolve(s.state, event).save).verified
    with pytest.raises(EventRefusedError, match=why):
        evolve(s.state, replace(event, **changed))


def test_the_table_itself_refuses_what_the_decider_would_not_do() -> None:
    s = Scenario()
    s.given(s.notice(), s.cordoned(), s.positions(), s.quiesced(0))
    with pytest.raises(EventRefusedError, match="All expected nodes"):
        evolve(s.state, e.RanksQuiesced(step=101, rank_count=4, quiesce_ms=1))
    s.when(s.quiesced(1))
    started = _only(s.history, e.SaveStarted)
    quiesced = _state_before(s.history, e.SaveDecided)
    unfit = replace(started, budget=replace(started.budget, fits=False))
    with pytest.raises(EventRefusedError, match="only if it fits"):
        evolve(quiesced, unfit)
    s.given(s.staged(), s.durable(), s.verified(), s.published())
    published = _only(s.history, e.ManifestPublished)
    unverified = _state_before(s.history, e.EntriesVerified)
    with pytest.raises(EventRefusedError, match="verified"):
        evolve(unverified, published)
    shortened = e.DeadlineShortened(
        source="spot",
        native_id="n1",
        from_unix_ms=1,
        to_unix_ms=s.state.current.deadline_unix_ms + 1,
        act_at_unix_ms=0,
        budget=started.budget,
    )
    for to_unix_ms in (shortened.to_unix_ms, s.state.current.deadline_unix_ms):
        with pytest.raises(EventRefusedError, match="earlier"):
            evolve(s.state, replace(shortened, to_unix_ms=to_unix_ms))


@pytest.mark.parametrize("kind", [e.BytesStaged, e.Durable, e.EntriesVerified, e.ManifestPublished])
def test_the_table_itself_refuses_reports_of_another_save(kind: type[e.Fact]) -> None:
    s = Scenario().saving()
    s.given(s.staged(), s.durable(), s.verified(), s.published())
    report: Any = _only(s.history, kind)
    before = _state_before(s.history, kind)
    evolve(before, report)
    with pytest.raises(EventRefusedError):
        evolve(before, replace(report, generation_id="other"))


def _only(history: list[Record], kind: type[F]) -> F:
    (event,) = [x for record in history for x in record.events if isinstance(x, kind)]
    return event


def _state_before(history: list[Record], kind: type[e.Fact]) -> State:
    fold = Fold(job_id="job", epoch=1)
    for record in history:
        state = fold.state
        for event in record.events:
            if isinstance(event, kind):
                return state
            assert isinstance(event, e.Fact)
            state = evolve(state, event)
        fold.read(record)
    raise AssertionError(kind)


def test_a_second_drain_starts_with_nothing_of_the_first() -> None:
    s = Scenario()
    s.given(s.notice(in_ms=40_000, hard=False), s.cordoned())
    s.given(i.WithdrawNotice(source="spot", native_id="n1"))
    s.given(s.notice(in_ms=90_000, native_id="n2"))
    assert s.state.current.cordon is None
    assert s.state.current.deadline_unix_ms == s.now_unix_ms + 90_000
    assert list(s.state.current.notices) == ["spot/n2"]
    assert [e.kind_of(x) for x in s.when(s.cordoned())] == ["node_cordoned"]


def test_a_notice_that_was_taken_back_stays_so_in_every_drain_until_it_is_given_anew() -> None:
    s = Scenario()
    soft = replace(s.notice(in_ms=600_000, native_id="soft", hard=False).notice, detail="b")
    s.given(i.ReceiveNotice(notice=soft), s.notice(native_id="soon", in_ms=500_000, hard=False))
    s.given(i.WithdrawNotice(source="spot", native_id="soft", revision=1))
    again = i.ReceiveNotice(notice=replace(soft, detail="a"))
    (received,) = s.when(again)
    assert isinstance(received, e.NoticeReceived)
    assert s.state.current.notices["spot/soft"].withdrawn
    s.when(i.WithdrawNotice(source="spot", native_id="soon", revision=1))
    s.when(again)
    s.then_nothing()
    s.when(s.notice(in_ms=600_000, native_id="soft", hard=False, revision=2))
    held = s.state.current.notices["spot/soft"]
    assert (held.withdrawn, held.withdrawn_revision) == (False, 1)


def test_an_older_withdrawal_takes_nothing_more_back_and_nothing_less() -> None:
    state = Scenario().given(Scenario().notice(hard=False, revision=3)).state
    for revision in (2, 1):
        taken_back = e.NoticeWithdrawn(source="spot", native_id="n1", revision=revision)
        state = evolve(state, taken_back)
        assert state.attempt.withdrawn == {"spot/n1": 2}
        assert state.current.notices["spot/n1"].withdrawn_revision == 2


def test_a_drain_begins_to_act_at_the_earliest_instant_of_any_event() -> None:
    s = Scenario()
    s.when(s.notice(in_ms=600_000, hard=False))
    first = s.state.current.act_at_unix_ms
    s.when(s.notice(in_ms=900_000, hard=False, native_id="later"))
    assert s.state.current.act_at_unix_ms == first
    s.when(s.notice(in_ms=600_000, hard=False, native_id="odd clock", clock_skew_ms=4_500))
    assert s.state.current.act_at_unix_ms == first - 4_000
    (_, shortened) = s.when(s.notice(in_ms=500_000, hard=False, native_id="sooner"))
    assert isinstance(shortened, e.DeadlineShortened)
    assert s.state.current.act_at_unix_ms == shortened.act_at_unix_ms == first - 104_000
    earlier = replace(shortened, to_unix_ms=shortened.to_unix_ms - 1)
    for act_at, counts in ((first - 104_001, first - 104_001), (first, first - 104_000)):
        after = evolve(s.state, replace(earlier, act_at_unix_ms=act_at))
        assert after.current.act_at_unix_ms == counts


def test_the_longest_steps_that_any_notice_told_of_count() -> None:
    s = Scenario()
    for native_id, step_ms, counts_ms in (("a", 0, 0), ("b", 900, 900), ("c", 30, 900)):
        s.when(replace(s.notice(native_id=native_id), step_ms=step_ms))
        assert s.state.current.step_ms == counts_ms


@pytest.mark.parametrize("stage", ["writing", "committing"])
def test_what_a_save_took_until_its_time_ran_out_is_evidence_for_the_next(stage: str) -> None:
    s = Scenario().saving(in_ms=60_000)
    s.wait(300)
    if stage == "committing":
        s.given(s.staged()).wait(700).given(s.durable())
    s.wait(59_000)
    assert isinstance(s.when(i.Tick())[0], e.SaveAbandoned)
    assert s.state.attempt.samples == (
        Sample(
            world_size=4,
            save_bytes=10_000_000,
            store=STORE,
            durable_ms=1_000 if stage == "committing" else 59_300,
            commit_ms=59_000 if stage == "committing" else 0,
        ),
    )


def test_a_save_that_failed_with_time_left_says_nothing_of_the_next() -> None:
    s = Scenario().saving()
    s.when(i.ReportSaveFailed(generation_id=s.generation_id, reason="full"))
    s.then(e.SaveAbandoned)
    assert s.state.attempt.samples == ()


@pytest.mark.parametrize("saved", [False, True])
def test_an_attempt_begins_with_what_the_one_before_it_left(saved: bool) -> None:
    record = RequeueRecord(
        job_id="job",
        epoch=1,
        cause=Cause.UNKNOWN,
        generation_id="g" if saved else None,
        manifest_digest="sha256:00" if saved else None,
        step=7 if saved else None,
        world_size=4,
        capacity=Capacity(node_count=2),
        recorded_unix_ms=0,
    )
    sample = Sample(world_size=4, save_bytes=1, store=STORE, durable_ms=1, commit_ms=1)
    started = i.StartAttempt(
        attempt_id="a",
        node_count=2,
        allowances=Allowances(quiesce_ms=7),
        grace_ms=9,
        store=STORE,
        claim_slot=3,
        restore=record,
        samples=(sample,),
    )
    (event,) = decide(first_state(job_id="job", epoch=2), started, now_unix_ms=0)
    attempt = evolve(first_state(job_id="job", epoch=2), event).attempt
    left = Committed(generation_id="g", manifest_digest="sha256:00", step=7)
    assert attempt.committed == (left if saved else None)
    assert (attempt.samples, attempt.allowances.quiesce_ms) == ((sample,), 7)
    assert (attempt.attempt_id, attempt.node_count, attempt.grace_ms) == ("a", 2, 9)
    assert attempt.store == STORE


def test_what_is_committed_or_restored_in_its_place_is_what_the_attempt_would_leave() -> None:
    s = Scenario()
    for step in (3, 4):
        sample = Sample(world_size=4, save_bytes=1, store=STORE, durable_ms=step, commit_ms=1)
        s.when(
            e.CheckpointCommitted(
                generation_id=f"g{step}",
                manifest_digest=f"d{step}",
                slot=step,
                step=step,
                sample=sample,
            )
        )
    newest = Committed(generation_id="g4", manifest_digest="d4", step=4, slot=4)
    assert s.state.attempt.committed == newest
    restored = e.CheckpointRestored(
        generation_id="g3",
        manifest_digest="d3",
        step=3,
        restore_ms=1,
        verification=Verification.CHECKSUMS,
    )
    s.when(restored)
    assert s.state.attempt.committed == newest, "nothing was refused"
    damaged = RefusedGeneration(generation_id="g4", reason="checksum")
    s.when(replace(restored, refused=(damaged,)))
    taken = Committed(generation_id="g3", manifest_digest="d3", step=3, slot=4)
    assert s.state.attempt.committed == taken


SAMPLE = Sample(world_size=4, save_bytes=1, store=STORE, durable_ms=1, commit_ms=1)


@pytest.mark.parametrize(
    "fact",
    [
        e.WorldFormed(world_size=3, save_bytes=5, restart=1),
        e.CheckpointSized(save_bytes=7),
        e.HealthyStepReached(step=9),
        e.CheckpointRestored(
            generation_id="g",
            manifest_digest="d",
            step=3,
            restore_ms=1,
            verification=Verification.SIZES,
        ),
        e.CheckpointCommitted(
            generation_id="g", manifest_digest="d", slot=2, step=3, sample=SAMPLE
        ),
        e.AttemptFenced(by_epoch=2),
        e.SourceUnknown(source="spot", node=0, since_unix_ms=1, detail="gone"),
    ],
    ids=e.kind_of,
)
def test_what_happens_beside_a_drain_leaves_it_as_it_is(fact: e.Event) -> None:
    s = Scenario()
    s.given(s.notice(), s.cordoned(), s.positions())
    after = evolve(s.state, fact)
    assert (after.drain, after.phase) == (s.state.drain, s.state.phase)


def test_the_newest_samples_are_kept() -> None:
    s = Scenario()
    for step in range(SAMPLES_MAX + 5):
        sample = Sample(world_size=4, save_bytes=1, store=STORE, durable_ms=step, commit_ms=1)
        report = e.CheckpointCommitted(
            generation_id=f"g{step}", manifest_digest="d", slot=step, step=step, sample=sample
        )
        s.when(report)
    assert len(s.state.attempt.samples) == SAMPLES_MAX
    assert s.state.attempt.samples[-1].durable_ms == SAMPLES_MAX + 4
    assert s.state.attempt.committed is not None
    assert s.state.attempt.committed.step == SAMPLES_MAX + 4


@pytest.mark.parametrize("of", [State, e.Event, AnyEffect, AnyInput])
def test_no_instant_has_a_default_that_could_be_taken_for_one(of: Any) -> None:
    """An instant is stated, or None: nothing else can stand in for one that is not known."""
    structs = msgspec.inspect.multi_type_info(_structs_in(of))
    instants = [
        (one.cls.__name__, field)
        for one in structs
        if isinstance(one, msgspec.inspect.StructType)
        for field in one.fields
        if field.name.endswith("_unix_ms")
    ]
    assert instants
    assert [at for at in instants if at[1].default not in (None, msgspec.NODEFAULT)] == []


def _structs_in(of: Any) -> set[type[msgspec.Struct]]:
    """All that a type is made of."""
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        hints = get_type_hints(of)
        return {of}.union(*(_structs_in(hint) for hint in hints.values()))
    return set().union(*(_structs_in(part) for part in get_args(of)))


def test_a_handler_that_counts_on_a_drain_is_of_an_event_that_drains_alone_allow() -> None:
    counting = {
        kind
        for kind, handler in EVENT_HANDLERS.items()
        if get_type_hints(handler)["drain"] is Drain
    }
    assert counting
    for kind in counting:
        assert set(TABLE[kind]) <= ACTIVE, kind


def test_what_is_to_be_done_follows_from_the_event_and_the_state_after_it() -> None:
    s = Scenario()
    s.given(s.notice())
    second = s.when(s.notice(native_id="n2"))
    assert effects_of(second[0], s.state) == ()
    (cordoned,) = s.when(s.cordoned())
    assert [type(x) for x in effects_of(cordoned, s.state)] == [HoldRanks]
    short = Scenario()
    short.given(short.notice(in_ms=5_000))
    cordoned, skipped = short.when(short.cordoned())
    assert effects_of(cordoned, short.state) == ()
    assert [type(x) for x in effects_of(skipped, short.state)] == [RecordRequeue, LeaveRanks]
    soft = Scenario()
    soft.given(soft.notice(in_ms=40_000, hard=False), soft.cordoned())
    events = soft.when(i.WithdrawNotice(source="spot", native_id="n1"))
    assert [type(x) for x in effects_of(events[-1], soft.state)] == [ResumeTraining]
