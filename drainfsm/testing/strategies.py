"""Hypothesis strategies for inputs: legal and illegal alike, near the present state."""

from __future__ import annotations

from hypothesis import strategies as st

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import Allowances, Sample
from drainfsm.core.events import MissingRank
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import Phase, State, generation_id
from drainfsm.core.words import CordonOutcome

__all__ = ["durations_ms", "good_input", "inputs", "notices"]

STORE = "file:///store"
DAY_MS = 86_400_000


def durations_ms(largest_ms: int = 60_000) -> st.SearchStrategy[int]:
    return st.integers(0, largest_ms)


allowances = st.builds(
    Allowances,
    handler_ms=durations_ms(2_000),
    quiesce_ms=durations_ms(20_000),
    commit_ms=durations_ms(15_000),
    exit_margin_ms=durations_ms(15_000),
    clock_skew_ms=durations_ms(2_000),
    store_bytes_per_s=st.integers(1, 10**9),
    barrier_ms=durations_ms(2_000),
    schedule_slack_ms=durations_ms(60_000),
)

samples = st.builds(
    Sample,
    world_size=st.sampled_from((2, 4)),
    save_bytes=st.integers(0, 10**9),
    store=st.sampled_from((STORE, "s3://bucket")),
    durable_ms=durations_ms(),
    commit_ms=durations_ms(5_000),
    quiesce_ms=st.none() | durations_ms(5_000),
)


def notices(*, now_unix_ms: int) -> st.SearchStrategy[Notice]:
    """Few identities, so that repeats, shrinks and later deadlines of one notice come up."""
    deadlines = st.sampled_from((-2 * DAY_MS, -1_000, 1, 8_000, 30_000, 150_000, DAY_MS))
    return st.builds(
        Notice,
        source=st.sampled_from(("spot", "slurm", "signal")),
        native_id=st.sampled_from(("a", "b")),
        cause=st.sampled_from(("spot_interruption", "time_limit", "unknown")),
        notice_class=st.sampled_from(NoticeClass),
        deadline_unix_ms=st.none() | deadlines.map(lambda ms: now_unix_ms + ms),
        received_unix_ms=st.integers(0, 5_000).map(lambda ago_ms: now_unix_ms - ago_ms),
        clock_skew_ms=st.sampled_from((0, 0, 3_000)),
    )


def _positions(state: State, *, ranks_per_node: int) -> st.SearchStrategy[i.ReportPositions]:
    node_count = max(1, state.attempt.world_size // ranks_per_node)
    position = st.tuples(
        st.integers(-1, 7), st.integers(0, 1), st.sampled_from((10, 10, 9_000)), st.booleans()
    )

    def build(drawn: list[tuple[int, int, int, bool]]) -> i.ReportPositions:
        return i.ReportPositions(
            positions=tuple(
                i.NodePosition(
                    node=node,
                    ranks=tuple(range(node * ranks_per_node, (node + 1) * ranks_per_node)),
                    min_step=step,
                    max_step=step + ahead,
                    step_ms=step_ms,
                    busy_rank=node if busy and step == 7 else None,
                    busy_phase="eval" if busy and step == 7 else "",
                    busy_for_ms=60_000 if busy and step == 7 else None,
                )
                for node, (step, ahead, step_ms, busy) in enumerate(drawn)
            )
        )

    full = st.lists(position, min_size=node_count, max_size=node_count)
    short = st.lists(position, min_size=1, max_size=node_count)
    return st.one_of(full, full, full, short).map(build)


def _quiesced(state: State) -> st.SearchStrategy[i.ReportQuiesced]:
    expected, step = ((), 0) if state.stop is None else (state.stop.nodes, state.stop.step)
    nodes = [(node.node, node.ranks) for node in expected] or [(0, (0, 1))]
    steps = st.sampled_from((step, step, 3))
    return st.builds(
        lambda node, step: i.ReportQuiesced(node=node[0], ranks=node[1], step=step),
        st.sampled_from([*nodes, (9, (9,))]),
        steps,
    )


def _save_reports(state: State) -> st.SearchStrategy[i.AnyInput]:
    save = state.save
    generation = "none" if save is None else save.generation_id
    file_count = 0 if save is None or save.written is None else save.written.file_count
    ids = st.sampled_from((generation, generation, "other"))
    ranks = st.sampled_from((state.attempt.world_size, state.attempt.world_size, 1))
    counts = st.sampled_from((file_count, 3))
    return st.one_of(
        st.builds(i.ReportStaged, generation_id=ids, staged_bytes=st.just(7), rank_count=ranks),
        st.builds(
            i.ReportDurable,
            generation_id=ids,
            durable_bytes=st.just(7),
            file_count=st.just(3),
            rank_count=ranks,
        ),
        st.builds(
            i.ReportVerified,
            generation_id=ids,
            expected_count=st.just(3),
            verified_count=counts,
            verified_bytes=st.just(7),
        ),
        st.builds(
            i.ReportPublished, generation_id=ids, manifest_digest=st.just("d"), slot=st.just(9)
        ),
        st.builds(i.ReportSaveFailed, generation_id=ids, reason=st.just("disk full")),
    )


def _checkpoints(state: State) -> st.SearchStrategy[i.AnyInput]:
    steps = st.integers(0, 9)
    return st.one_of(
        st.builds(
            lambda step, sample: e.CheckpointCommitted(
                generation_id=generation_id(epoch=state.attempt.epoch, step=step, saver="p"),
                manifest_digest="d",
                slot=step + 2,
                step=step,
                sample=sample,
            ),
            steps,
            samples,
        ),
        st.builds(
            e.CheckpointFailed,
            generation_id=st.just("p"),
            step=steps,
            reason=st.just("disk full"),
        ),
    )


def _ends(state: State) -> st.SearchStrategy[i.AnyInput]:
    record = RequeueRecord(
        job_id=state.attempt.job_id,
        epoch=state.attempt.epoch,
        cause=Cause.SPOT_INTERRUPTION,
        generation_id=None,
        manifest_digest=None,
        step=None,
        world_size=state.attempt.world_size,
        capacity=Capacity(node_count=state.attempt.node_count),
        recorded_unix_ms=0,
    )
    missing = (MissingRank(rank=1, node=0, last_step=4, phase="train"),)
    return st.one_of(
        st.just(e.RequeueRecorded(record=record)),
        st.builds(i.ReportExited, exit_code=st.sampled_from((0, 1, 75)), nodes=st.just(())),
        st.builds(
            i.ReportRanksLost,
            missing=st.just(missing),
            node_lost=st.booleans(),
            reason=st.just("rank 1 died"),
        ),
        st.builds(
            i.ReportFenced, by_epoch=st.integers(state.attempt.epoch, state.attempt.epoch + 2)
        ),
    )


def inputs(
    state: State, *, now_unix_ms: int, ranks_per_node: int = 2
) -> st.SearchStrategy[i.AnyInput]:
    """Anything that the shell could hand in now, sensible or not."""
    return st.one_of(
        st.builds(i.ReceiveNotice, notice=notices(now_unix_ms=now_unix_ms)),
        st.builds(
            i.WithdrawNotice,
            source=st.sampled_from(("spot", "slurm", "signal")),
            native_id=st.sampled_from(("a", "b")),
            reason=st.just("called off"),
        ),
        st.builds(
            i.ReportCordon,
            outcome=st.sampled_from(("success", "failed", "timed_out", "not_configured")),
            duration_ms=durations_ms(1_000),
        ),
        _positions(state, ranks_per_node=ranks_per_node),
        _quiesced(state),
        _quiesced(state),
        _save_reports(state),
        _save_reports(state),
        _checkpoints(state),
        _ends(state),
        st.builds(
            i.FormWorld,
            world_size=st.sampled_from((state.attempt.world_size, 2, 4)),
            save_bytes=st.sampled_from((state.attempt.save_bytes, 10**6)),
        ),
        st.builds(e.HealthyStepReached, step=st.integers(0, 9)),
        st.just(i.Tick()),
    )


def good_input(state: State, *, ranks_per_node: int = 2) -> i.AnyInput | None:
    """The next report in a drain that goes well; None if the shell has nothing to do."""
    save, stop = state.save, state.stop
    generation = "" if save is None else save.generation_id
    match state.phase:
        case Phase.NOTICED if state.current.hold is None:
            return i.ReportCordon(outcome=CordonOutcome.SUCCESS, duration_ms=1)
        case Phase.NOTICED:
            return _good_positions(state, ranks_per_node=ranks_per_node)
        case Phase.QUIESCING if stop is not None:
            node = next(node for node in stop.nodes if node.node in stop.waiting)
            return i.ReportQuiesced(node=node.node, ranks=node.ranks, step=stop.step)
        case Phase.SAVING:
            return i.ReportStaged(
                generation_id=generation, staged_bytes=7, rank_count=state.attempt.world_size
            )
        case Phase.STAGED:
            return i.ReportDurable(
                generation_id=generation,
                durable_bytes=7,
                file_count=3,
                rank_count=state.attempt.world_size,
            )
        case Phase.DURABLE if save is not None and not save.verified:
            return i.ReportVerified(
                generation_id=generation, expected_count=3, verified_count=3, verified_bytes=7
            )
        case Phase.DURABLE:
            return i.ReportPublished(generation_id=generation, manifest_digest="d", slot=9)
        case Phase.PUBLISHED | Phase.LEAVING:
            return i.ReportExited(exit_code=75, nodes=())
        case _:
            return None


def _good_positions(state: State, *, ranks_per_node: int) -> i.ReportPositions:
    return i.ReportPositions(
        positions=tuple(
            i.NodePosition(
                node=node,
                ranks=tuple(range(node * ranks_per_node, (node + 1) * ranks_per_node)),
                min_step=4,
                max_step=5,
                step_ms=1,
            )
            for node in range(state.attempt.world_size // ranks_per_node)
        )
    )
