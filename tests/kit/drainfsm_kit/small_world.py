"""The world of ``specs/models/Drain.tla`` in real values: instants, notices, reports, views.

One real value stands for each abstract one: two deadlines, and instants at which the stages of a
drain just still fit, or just no longer. Numbers between them are the property tests' business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import Allowances, Sample
from drainfsm.core.decider import decide
from drainfsm.core.fold import evolve
from drainfsm.core.notice import Cause, Notice, NoticeClass, stated_revision
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import HeldNotice, State, first_state, known
from drainfsm.core.words import CordonOutcome
from drainfsm_kit.tlc import freeze

NEAR, FAR = 1, 2
"""The model's deadlines."""

NEAR_UNIX_MS = 1_800_000_000_000
FAR_UNIX_MS = NEAR_UNIX_MS + 10_000_000
DEADLINES_UNIX_MS = {NEAR: NEAR_UNIX_MS, FAR: FAR_UNIX_MS}
SKEW_MS = 500
WAIT_MS = 1_001
"""Just more than the ranks are waited for: what they took before. No stage is over meanwhile."""

STORE = "file:///store"
SAVE_BYTES = 10_000_000
ALLOWANCES = Allowances(
    handler_ms=0,
    quiesce_ms=500,
    commit_ms=3_000,
    exit_margin_ms=5_000,
    clock_skew_ms=SKEW_MS,
    store_bytes_per_s=100_000_000,
    barrier_ms=1_000,
    schedule_slack_ms=30_000,
)
SAMPLE = Sample(
    world_size=2,
    save_bytes=SAVE_BYTES,
    store=STORE,
    durable_ms=100,
    commit_ms=100,
    quiesce_ms=1_000,
)
"""A drain needs 1,000 + 1,100 + 3,000 + 5,000 ms; each term drops out as it is spent."""

_USABLE_LEFT_MS = (40_000, 10_000, 9_050, 6_500, 3_000)
"""At instants 0 to 4, of the near deadline: above 10,100, 9,100, 8,000, 5,000 and 0 ms."""

INSTANTS_UNIX_MS = (
    *(NEAR_UNIX_MS - SKEW_MS - left_ms for left_ms in _USABLE_LEFT_MS),
    NEAR_UNIX_MS - SKEW_MS // 2,
    NEAR_UNIX_MS + 1,
    FAR_UNIX_MS - SKEW_MS - 40_000,
    FAR_UNIX_MS + 1,
)


class ModelNotice(NamedTuple):
    """A notice as the model writes it."""

    native_id: str
    notice_class: str
    deadline: int
    revision: int = 1


MODEL_NOTICES = (
    ModelNotice("a", "soft", FAR),
    ModelNotice("a", "soft", NEAR, revision=2),
    ModelNotice("b", "hard", NEAR),
)


def notice_of(model: ModelNotice) -> Notice:
    return Notice(
        source="model",
        native_id=model.native_id,
        cause=Cause.UNKNOWN,
        notice_class=NoticeClass(model.notice_class),
        deadline_unix_ms=DEADLINES_UNIX_MS[model.deadline],
        received_unix_ms=INSTANTS_UNIX_MS[0],
        revision=stated_revision(model.revision),
    )


def initial_state(*, node_count: int) -> State:
    """An attempt that has started, with its world formed: one rank a node."""
    state = first_state(job_id="job", epoch=1)
    start = i.StartAttempt(
        attempt_id="attempt",
        node_count=node_count,
        allowances=ALLOWANCES,
        grace_ms=30_000,
        store=STORE,
        claim_slot=1,
        restore=None,
        samples=(SAMPLE,),
    )
    form = i.FormWorld(world_size=node_count, save_bytes=SAVE_BYTES)
    for given in (start, form):
        for event in decide(state, given, now_unix_ms=INSTANTS_UNIX_MS[0]):
            state = evolve(state, event)
    return state


class Given(NamedTuple):
    """An input, the model's action for it, and the notice that it delivers, if it does."""

    action: str
    input: i.AnyInput
    notice: ModelNotice | None = None


def given_inputs(
    state: State, ordered: frozenset[str], notices: tuple[ModelNotice, ...], node_count: int
) -> Iterator[Given]:
    """Every input that may come: reports only once the effect that asks for them was run."""
    for model in notices:
        yield Given("ReceiveNotice", i.ReceiveNotice(notice=notice_of(model)), model)
    for native_id in sorted({model.native_id for model in notices}):
        for revision in sorted({model.revision for model in notices}):
            given = i.WithdrawNotice(source="model", native_id=native_id, revision=revision)
            yield Given("WithdrawNotice", given)
    for number in range(1, state.drain_count):  # late reports of drains that were called off
        late = f"{state.attempt.job_id}/{state.attempt.epoch}/{number}"
        cordon = i.ReportCordon(outcome=CordonOutcome.SUCCESS, duration_ms=1, drain_id=late)
        yield Given("ReportCordon", cordon)
        yield Given("ReportPositions", _positions(node_count, None, drain_id=late))
    if "CordonNodes" in ordered:
        yield Given("ReportCordon", i.ReportCordon(outcome=CordonOutcome.SUCCESS, duration_ms=1))
    if "HoldRanks" in ordered:
        for busy_for_ms in (None, 60_000_000):
            yield Given("ReportPositions", _positions(node_count, busy_for_ms))
    if "ReleaseTo" in ordered:
        step = known(state.stop).step
        for node in range(node_count):
            yield Given("ReportQuiesced", i.ReportQuiesced(node=node, ranks=(node,), step=step))
    if "StartSave" in ordered:
        yield from _save_reports(known(state.save).generation_id, ordered, node_count)
    if "RecordRequeue" in ordered:
        yield Given("ReportRequeueRecorded", e.RequeueRecorded(record=_requeue_record()))
    yield Given("ReportExited", i.ReportExited(exit_code=0, nodes=()))
    for lost in (False, True):
        report = i.ReportRanksLost(missing=(), node_lost=lost, reason="lost")
        yield Given("ReportRanksLost", report)
    yield Given("ReportFenced", i.ReportFenced(by_epoch=state.attempt.epoch + 1))
    yield Given("Tick", i.Tick())


def _positions(
    node_count: int, busy_for_ms: int | None, *, drain_id: str = ""
) -> i.ReportPositions:
    return i.ReportPositions(
        drain_id=drain_id,
        positions=tuple(
            i.NodePosition(
                node=node,
                ranks=(node,),
                min_step=6,
                max_step=6,
                step_ms=0,
                busy_rank=None if busy_for_ms is None else node,
                busy_for_ms=busy_for_ms,
            )
            for node in range(node_count)
        ),
    )


def _save_reports(generation_id: str, ordered: frozenset[str], node_count: int) -> Iterator[Given]:
    staged = i.ReportStaged(generation_id=generation_id, staged_bytes=9, rank_count=node_count)
    yield Given("ReportStaged", staged)
    durable = i.ReportDurable(
        generation_id=generation_id, durable_bytes=9, file_count=2, rank_count=node_count
    )
    yield Given("ReportDurable", durable)
    failed = i.ReportSaveFailed(generation_id=generation_id, reason="disk full")
    yield Given("ReportSaveFailed", failed)
    if "VerifyEntries" in ordered:
        for verified_count in (2, 1):
            report = i.ReportVerified(
                generation_id=generation_id,
                expected_count=2,
                verified_count=verified_count,
                verified_bytes=9,
            )
            yield Given("ReportVerified", report)
    if "PublishManifest" in ordered:
        published = i.ReportPublished(
            generation_id=generation_id, manifest_digest="sha256:00", slot=2
        )
        yield Given("ReportPublished", published)


def _requeue_record() -> RequeueRecord:
    return RequeueRecord(
        job_id="job",
        epoch=1,
        cause=Cause.UNKNOWN,
        generation_id=None,
        manifest_digest=None,
        step=None,
        world_size=2,
        capacity=Capacity(node_count=2),
        recorded_unix_ms=0,
    )


# --- what the model has for a state -------------------------------------------------------------

_ABSTRACT = {None: 0} | {at: deadline for deadline, at in DEADLINES_UNIX_MS.items()}
NOBODY = freeze(
    {
        "said": {"class": "none", "deadline": 0},
        "earliest": 0,
        "latest": 0,
        "revision": 0,
        "withdrawn": False,
    }
)
"""What the model has for a notice that was not heard."""


def view_of(state: State, **world: Any) -> Any:
    """The model's variables: ``drain`` from the state, the others as they are given."""
    return freeze({"drain": _drain(state)} | world)


def _drain(state: State) -> dict[str, Any]:
    notices = {} if state.drain is None else state.drain.notices
    return drain_view(state, _ABSTRACT) | {
        "notices": {_id(name): _held(held) for name, held in notices.items()},
        "withdrawn": {_id(name): gone for name, gone in state.attempt.withdrawn.items()},
        "committed": state.attempt.committed is not None,
    }


def drain_view(state: State, deadlines: Mapping[int | None, int]) -> dict[str, Any]:
    """What the model says of a drain, but for its notices and what is committed. ``deadlines``:
    the model's numbers for instants, and for none."""
    attempt, drain, stop, save = state.attempt, state.drain, state.stop, state.save
    return {
        "phase": state.phase.value,
        "drains": state.drain_count,
        "deadline": deadlines[None if drain is None else drain.deadline_unix_ms],
        "cordoned": drain is not None and drain.cordon is not None,
        "held": drain is not None and drain.hold is not None,
        "stop": stop is not None,
        "quiesced": {f"n{node}" for node in stop.quiesced} if stop is not None else set(),
        "saves": int(save is not None),
        "verified": save is not None and save.verified,
        "requeue": attempt.requeue is not None,
        "fenced": attempt.fenced_by is not None,
        "ended": attempt.exit_code is not None,
        "refused": False,
    }


def _id(identity: str) -> str:
    return identity.removeprefix("model/")


def _held(held: HeldNotice) -> dict[str, Any]:
    said = held.notice
    return {
        "said": {
            "class": said.notice_class.value,
            "deadline": _ABSTRACT[said.deadline_unix_ms],
        },
        "earliest": _ABSTRACT[held.earliest_unix_ms],
        "latest": _ABSTRACT[held.latest_unix_ms],
        "revision": held.revision,
        "withdrawn": held.withdrawn,
    }
