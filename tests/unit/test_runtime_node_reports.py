"""What the nodes reported, gathered: an input once all nodes have said their part."""

from __future__ import annotations

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.events import MissingRank, NodeExit
from drainfsm.core.manifest import Entry
from drainfsm.runtime.coordinator.node_reports import REFUSALS_MAX, NodeReports
from drainfsm.runtime.coordinator.saves import Saves
from drainfsm.runtime.wire import node_messages as n
from drainfsm.testing.scenario import Scenario


def formed(*ranks: int, restart: int = 0, save_bytes: int = 0) -> n.NodeFormed:
    return n.NodeFormed(ranks=ranks, world_size=4, save_bytes=save_bytes, restart=restart)


def held(node: int, *ranks: int, step: int) -> n.NodeHeld:
    return n.NodeHeld(
        position=i.NodePosition(node=node, ranks=ranks, min_step=step, max_step=step, step_ms=1)
    )


def test_the_world_is_formed_when_every_rank_that_began_together_is_there() -> None:
    reports = NodeReports(node_count=2)
    assert reports.formed(0, formed(0, 1)) is None
    assert reports.formed(1, formed(2, 3)) == i.FormWorld(world_size=4, save_bytes=0)
    assert reports.formed(0, formed(0, 1, restart=1)) is None
    whole = reports.formed(1, formed(2, 3, restart=1, save_bytes=9))
    assert whole == i.FormWorld(world_size=4, save_bytes=9, restart=1)


def test_new_sizes_are_handed_on_once_every_node_has_reported_its_own() -> None:
    reports = NodeReports(node_count=2)
    reports.formed(0, formed(0, 1))
    assert reports.formed(0, formed(0, 1, save_bytes=3)) is None
    assert reports.formed(1, formed(2, 3)) == i.FormWorld(world_size=4, save_bytes=3)
    assert reports.formed(1, formed(2, 3, save_bytes=4)) == i.FormWorld(world_size=4, save_bytes=7)
    assert reports.formed(1, formed(2, 3, save_bytes=5)) is None
    assert reports.formed(0, formed(0, 1, save_bytes=5)) == i.FormWorld(world_size=4, save_bytes=10)


def test_ranks_that_are_doubled_or_missing_are_no_world() -> None:
    reports = NodeReports(node_count=2)
    assert reports.formed(0, formed(0, 1)) is None
    assert reports.formed(1, formed(1, 2)) is None
    assert reports.formed(1, formed(2)) is None
    assert reports.formed(1, formed(3, 2)) == i.FormWorld(world_size=4, save_bytes=0)


def test_positions_come_together_and_those_of_an_earlier_hold_are_forgotten() -> None:
    reports = NodeReports(node_count=2)
    reports.begin_hold()
    assert reports.held(0, held(0, 0, 1, step=5)) is None
    assert reports.highest_step == 5
    reports.begin_hold()
    assert reports.highest_step is None
    assert reports.held(1, held(1, 2, 3, step=7)) is None
    positions = reports.held(0, held(0, 0, 1, step=8))
    assert positions is not None
    assert {position.node for position in positions} == {0, 1}
    assert reports.highest_step == 8


def test_who_is_missing_is_told_as_well_as_it_is_known() -> None:
    reports = NodeReports(node_count=4)
    for node, ranks in ((0, (0,)), (1, (1,)), (2, (2,))):
        reports.formed(node, formed(*ranks))
    reports.begin_hold()
    reports.held(0, held(0, 0, step=5))
    late = MissingRank(rank=1, node=1, last_step=4, phase="eval")
    reports.late(1, n.NodeLate(missing=(late,)))
    drain = Scenario(node_count=4, ranks_per_node=1)
    drain.given(drain.notice(), drain.cordoned())
    assert reports.missing(drain.state) == (
        late,
        MissingRank(rank=2, node=2, last_step=None, phase="silent"),
        MissingRank(rank=-1, node=3, last_step=None, phase="never attached"),
    )
    drain.given(drain.positions(), *drain.all_quiesced()[1:])
    silent = MissingRank(rank=0, node=0, last_step=5, phase="silent")
    assert reports.missing(drain.state) == (silent,)
    assert reports.missing(Scenario().state) == ()


def refused(rank: int, reason: str, *, node: int = 0) -> e.RestoreRefused:
    return e.RestoreRefused(
        generation_id="g",
        step=4,
        error="ManifestMismatchError",
        reason=reason,
        rank=rank,
        node=node,
    )


def test_ranks_that_refuse_a_restore_together_are_heard_once_and_many_reasons_have_an_end() -> None:
    reports = NodeReports(node_count=2)
    first = refused(3, "a flipped bit", node=1)
    assert reports.restore_refused(first) is first
    assert reports.restore_refused(refused(0, "a flipped bit")) is None
    heard = [reports.restore_refused(refused(0, f"file {index}")) for index in range(20)]
    assert sum(one is not None for one in heard) == REFUSALS_MAX - 1


def exited(node: int, code: int, failed_unix_ms: int | None = None) -> n.NodeExited:
    return n.NodeExited(exit=NodeExit(node=node, exit_code=code), failed_unix_ms=failed_unix_ms)


def test_the_rank_that_failed_first_tells_the_exit_code_not_the_node_that_ended_first() -> None:
    reports = NodeReports(node_count=3)
    assert not reports.exited(0, exited(0, 1, failed_unix_ms=1_001))
    assert not reports.exited(2, exited(2, 0))
    assert reports.exited(1, exited(1, 85, failed_unix_ms=1_000))
    assert reports.first_failure == 85


def test_one_is_the_code_of_those_who_were_left_alone() -> None:
    reports = NodeReports(node_count=2)
    reports.exited(0, exited(0, 1, failed_unix_ms=1_000))
    reports.exited(1, exited(1, 85, failed_unix_ms=1_002))
    assert reports.first_failure == 85


def test_a_node_that_says_nothing_has_an_exit_too() -> None:
    reports = NodeReports(node_count=2)
    reports.exited(1, exited(1, 0))
    assert reports.exits() == (
        NodeExit(node=0, exit_code=-1, detail="no report"),
        NodeExit(node=1, exit_code=0),
    )


def durable(node: int, *, rank: int) -> n.NodeDurable:
    entry = Entry(name=f"f{rank}", size_bytes=10, checksum="sha256:00", rank=rank)
    return n.NodeDurable(
        generation_id="g", entries=(entry,), file_counts={rank: 1}, durable_ms=rank
    )


def test_a_save_is_written_when_it_is_durable_on_every_node() -> None:
    saves = Saves(node_count=2)
    saves.begin("g", step=7)
    assert saves.durable(1, durable(1, rank=1)) is None
    written = saves.durable(0, durable(0, rank=0))
    assert written is not None
    assert (written.step, written.total_bytes, written.durable_ms) == (7, 20, 1)
    assert written.file_counts == {0: 1, 1: 1}
    assert saves.durable(0, durable(0, rank=0)) is None, "it is over"


def test_reports_of_a_save_that_is_over_open_none() -> None:
    saves = Saves(node_count=1)
    saves.begin("g", step=7)
    assert saves.drop("g") == 7
    saves.begin("g", step=7)
    assert saves.durable(0, durable(0, rank=0)) is None
    assert saves.drop("g") is None


def test_a_world_whose_ranks_begin_again_is_whole_once_all_of_them_have_attached() -> None:
    """Also where the launcher gives its restarts no number."""
    reports = NodeReports(node_count=2)
    reports.formed(0, formed(0, 1))
    reports.formed(1, formed(2, 3))
    assert reports.whole
    reports.starting(0)
    reports.starting(1)
    assert not reports.whole
    assert reports.formed(0, formed(0, 1)) is None
    assert not reports.whole
    assert reports.formed(1, formed(2, 3)) == i.FormWorld(world_size=4, save_bytes=0)
    assert reports.whole


def test_a_node_whose_ranks_are_those_from_before_a_restart_makes_no_world_whole() -> None:
    """torchrun counts restarts on the node alone where a worker failed."""
    reports = NodeReports(node_count=2)
    reports.formed(0, formed(0, 1))
    reports.formed(1, formed(2, 3))
    reports.starting(1)
    assert reports.formed(1, formed(2, 3, restart=1)) is None
    assert (reports.whole, reports.not_formed) == (False, (0,))
    reports.starting(0)
    whole = reports.formed(0, formed(0, 1, restart=1))
    assert whole == i.FormWorld(world_size=4, save_bytes=0, restart=1)
    assert (reports.whole, reports.not_formed) == (True, ())
