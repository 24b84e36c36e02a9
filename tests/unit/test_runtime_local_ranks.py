"""The ranks of one node: one message a node, whatever order its ranks speak in."""

from __future__ import annotations

from typing import Any

import pytest

from drainfsm.core.events import CheckpointRestored, HealthyStepReached, MemoryShortage, MissingRank
from drainfsm.core.inputs import NodePosition
from drainfsm.core.manifest import Entry
from drainfsm.core.words import Verification
from drainfsm.runtime.agent.local_ranks import LocalRanks, Send
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m

SHORTAGE = MemoryShortage(host="a", needed_bytes=2, free_bytes=1)


class OneNode:
    """Node 1 of two, with ranks 2 and 3 of four."""

    def __init__(self) -> None:
        self.reports: list[n.FromNode] = []
        self.told: dict[int, list[m.ToRank]] = {}
        self._sends: dict[int, Send] = {}
        self.ranks = LocalRanks(node=1, node_count=2, report=self.reports.append)

    def attach(
        self, rank: int | None, *, incarnation: str = "0", restart: int = 0, **given: int | None
    ) -> int:
        told: list[m.ToRank] = []
        send: Send = told.append
        sizes: dict[str, int | None] = {"world_size": 4, "local_world_size": 2, **given}
        attach = m.Attach(rank=rank, pid=1, incarnation=incarnation, **sizes)
        taken = self.ranks.attach(attach, send, restart=restart)
        self.told[taken], self._sends[taken] = told, send
        self.ranks.attached(taken)
        return taken

    def say(self, rank: int, message: m.FromRank) -> None:
        self.ranks.on_message(rank, self._sends[rank], message)

    def end(self, rank: int, how: str = "ended with exit code 1") -> None:
        self.ranks.gone(rank, self._sends[rank], how=how)

    def new_reports(self) -> list[n.FromNode]:
        reports = list(self.reports)
        self.reports.clear()
        return reports


@pytest.fixture
def node() -> OneNode:
    return OneNode()


@pytest.fixture
def formed(node: OneNode) -> OneNode:
    node.attach(2)
    node.attach(3)
    node.reports.clear()
    return node


def at(
    step: int, *, phase: str = "train", left_ms: int | None = None, number: int = 1
) -> m.Position:
    return m.Position(number=number, step=step, step_ms=10, phase=phase, phase_left_ms=left_ms)


def test_the_node_is_formed_once_its_last_rank_has_attached(node: OneNode) -> None:
    node.attach(3)
    node.say(3, m.SizeDeclared(save_bytes=7))
    assert node.new_reports() == []
    node.attach(2)
    assert node.new_reports() == [n.NodeFormed(ranks=(2, 3), world_size=4, save_bytes=0, restart=0)]
    node.say(2, m.SizeDeclared(save_bytes=5))
    assert node.new_reports() == [
        n.NodeFormed(ranks=(2, 3), world_size=4, save_bytes=12, restart=0)
    ]


def test_new_sizes_are_reported_once_every_rank_has_said_its_own(formed: OneNode) -> None:
    for size in (5, 6):
        formed.say(2, m.SizeDeclared(save_bytes=size))
        assert formed.new_reports() == []
        formed.say(3, m.SizeDeclared(save_bytes=size))
        assert formed.new_reports() == [
            n.NodeFormed(ranks=(2, 3), world_size=4, save_bytes=2 * size, restart=0)
        ]


def test_a_plain_process_without_a_launcher_is_the_rank_of_its_node(node: OneNode) -> None:
    assert node.attach(None, world_size=None, local_world_size=None) == 1
    assert node.new_reports() == [n.NodeFormed(ranks=(1,), world_size=2, save_bytes=0, restart=0)]


@pytest.mark.parametrize(
    ("rank", "given", "reason"),
    [
        (4, {}, "rank 4 is not in a world of 4"),
        (2, {}, "rank 2 is attached already"),
        (3, {"world_size": 8}, "rank 3 says 2 of 8"),
    ],
)
def test_a_rank_that_does_not_fit_is_refused(
    node: OneNode, rank: int, given: dict[str, Any], reason: str
) -> None:
    node.attach(2)
    with pytest.raises(ValueError, match=reason):
        node.attach(rank, **given)


def test_positions_are_reported_when_every_rank_is_held(formed: OneNode) -> None:
    formed.ranks.hold("job/1/1")
    assert formed.told[2] == formed.told[3] == [m.Hold(number=1)]
    formed.say(2, at(7))
    assert formed.new_reports() == []
    formed.say(3, at(6, phase="eval", left_ms=900))
    assert formed.new_reports() == [
        n.NodeHeld(
            position=NodePosition(
                node=1,
                ranks=(2, 3),
                min_step=6,
                max_step=7,
                step_ms=10,
                busy_rank=3,
                busy_phase="eval",
                busy_for_ms=900,
            ),
            drain_id="job/1/1",
        )
    ]


def test_an_answer_to_a_hold_that_was_called_off_is_none_to_the_next(formed: OneNode) -> None:
    """Between the two the rank went on: the step that it says is long past."""
    formed.ranks.hold("job/1/1")
    formed.ranks.resume()
    formed.ranks.hold("job/1/2")
    formed.say(2, at(7, number=1))
    formed.say(3, at(7, number=1))
    assert formed.new_reports() == []
    formed.say(2, at(9, number=2))
    formed.say(3, at(9, number=2))
    (held,) = formed.new_reports()
    assert isinstance(held, n.NodeHeld)
    assert (held.drain_id, held.position.max_step) == ("job/1/2", 9)


def test_a_rank_that_attaches_during_a_drain_is_told_what_the_others_were(node: OneNode) -> None:
    node.attach(2)
    node.ranks.hold()
    node.ranks.release_to(9)
    node.attach(3)
    assert node.told[3] == [m.Hold(number=1), m.Release(stop_step=9)]
    node.ranks.leave(9)
    node.end(3)
    node.attach(3)
    assert node.told[3] == [m.Leave(at_step=None)]


def test_the_node_quiesces_with_its_last_rank(formed: OneNode) -> None:
    formed.ranks.hold()
    formed.ranks.release_to(9)
    formed.say(3, m.Quiesced(step=9))
    assert formed.new_reports() == []
    assert formed.ranks.missing() == (MissingRank(rank=2, node=1, last_step=None, phase="silent"),)
    formed.say(2, m.Quiesced(step=9))
    assert formed.new_reports() == [n.NodeQuiesced(ranks=(2, 3), step=9)]
    assert formed.ranks.missing() == ()


def test_late_ranks_are_named_with_what_they_do(formed: OneNode) -> None:
    formed.ranks.hold()
    formed.say(2, at(7))
    formed.say(3, at(7))
    formed.ranks.release_to(8)
    formed.say(2, m.Quiesced(step=8))
    formed.ranks.ask()
    assert formed.told[3][-1] == m.Ask(number=1)
    assert m.Ask() not in formed.told[2]
    formed.say(3, at(7, phase="compile"))
    assert formed.ranks.missing() == (MissingRank(rank=3, node=1, last_step=7, phase="compile"),)


def test_ranks_that_never_attached_are_counted(node: OneNode) -> None:
    assert [rank.phase for rank in node.ranks.missing()] == ["never attached"]
    node.attach(2)
    node.ranks.hold()
    node.say(2, at(0))
    assert [(rank.rank, rank.phase) for rank in node.ranks.missing()] == [(-1, "not attached")]


def test_a_rank_that_dies_is_reported_only_while_a_drain_needs_it(formed: OneNode) -> None:
    formed.end(3)
    assert formed.new_reports() == [], "the launcher's to handle"
    formed.attach(3)
    formed.reports.clear()
    formed.ranks.hold()
    formed.say(3, at(4))
    formed.end(3, how="was ended by SIGKILL")
    assert formed.new_reports() == [
        n.NodeRanksLost(
            missing=(MissingRank(rank=3, node=1, last_step=4, phase="lost"),),
            reason="rank 3 was ended by SIGKILL",
        )
    ]
    formed.ranks.leave(5)
    formed.end(2)
    assert formed.new_reports() == [], "it was told to leave"


def test_ranks_started_again_form_a_new_world_and_what_they_had_begun_is_lost(
    formed: OneNode,
) -> None:
    formed.say(2, m.SaveBegan(generation_id="g", step=4))
    formed.reports.clear()
    formed.attach(2, incarnation="1", restart=1)
    assert formed.new_reports() == [
        n.NodeSaveFailed(generation_id="g", reason="the ranks were restarted")
    ]
    formed.attach(3, incarnation="1", restart=1)
    assert formed.new_reports() == [
        n.NodeFormed(ranks=(2, 3), world_size=4, save_bytes=0, restart=1)
    ]


def durable(rank: int) -> m.DurableFiles:
    entry = Entry(name=f"f{rank}", size_bytes=10, checksum="sha256:00", rank=rank)
    return m.DurableFiles(generation_id="g", entries=(entry,), durable_ms=rank)


def test_a_save_is_reported_staged_and_durable_with_its_last_rank(formed: OneNode) -> None:
    formed.say(2, m.Staged(generation_id="g", staged_bytes=10))
    formed.say(2, durable(2))
    assert formed.new_reports() == []
    formed.say(3, m.Staged(generation_id="g", staged_bytes=11))
    assert formed.new_reports() == [n.NodeStaged(generation_id="g", staged_bytes=21, rank_count=2)]
    formed.say(3, durable(3))
    assert formed.new_reports() == [
        n.NodeDurable(
            generation_id="g",
            entries=durable(2).entries + durable(3).entries,
            file_counts={2: 1, 3: 1},
            durable_ms=3,
        )
    ]


def test_a_save_fails_once_even_after_it_was_durable(formed: OneNode) -> None:
    formed.say(2, durable(2))
    formed.say(3, durable(3))
    formed.reports.clear()
    formed.say(3, m.SaveFailed(generation_id="g", reason="a peer failed", memory=SHORTAGE))
    formed.say(2, m.SaveFailed(generation_id="g", reason="a peer failed", memory=SHORTAGE))
    assert formed.new_reports() == [
        n.NodeSaveFailed(generation_id="g", reason="rank 3: a peer failed", memory=SHORTAGE)
    ]


def test_a_save_that_was_given_up_is_not_reported_any_more(formed: OneNode) -> None:
    formed.say(2, durable(2))
    formed.ranks.abort("g")
    formed.say(3, durable(3))
    assert [type(report) for report in formed.new_reports()] == []
    assert formed.told[2] == formed.told[3] == [m.Abort(generation_id="g")]


def test_the_first_step_and_the_restore_are_reported_with_the_last_rank(formed: OneNode) -> None:
    for rank, restore_ms in ((2, 30), (3, 20)):
        formed.say(
            rank,
            CheckpointRestored(
                generation_id="g",
                manifest_digest="d",
                step=4,
                restore_ms=restore_ms,
                verification=Verification.SIZES,
            ),
        )
        formed.say(rank, HealthyStepReached(step=5))
    restored, first = formed.new_reports()
    assert isinstance(restored, CheckpointRestored)
    assert restored.restore_ms == 30
    assert first == HealthyStepReached(step=5)
