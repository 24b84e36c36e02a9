"""What a rank's standing orders let its main thread do, boundary by boundary, without waiting."""

from __future__ import annotations

import threading

import pytest

from drainfsm.core.orders import SaveOrder
from drainfsm.runtime.rank.orders import Action, StandingOrders
from drainfsm.runtime.rank.progress import LearnedPhases, StepTimes
from drainfsm.runtime.wire import rank_messages as m

SAVE = SaveOrder(generation_id="g", step=5, durable_by_unix_ms=0)
JOIN_S = 60.0


class Rank:
    """One main thread, as its boundaries see it."""

    def __init__(self) -> None:
        self.orders = StandingOrders()
        self.flags = 0
        self.relaxed = 0

    def hears(self, *orders: m.ToRank) -> None:
        for order in orders:
            self.orders.accept(order, self._raise)

    def at(self, step: int) -> Action | None:
        """None: it is held there."""
        found = self.orders.look(step, self._relax)
        return None if found is None else found[0]

    def _raise(self) -> None:
        self.flags += 1

    def _relax(self) -> None:
        self.relaxed += 1


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_without_orders_it_trains_on_and_need_not_look_again(rank: Rank) -> None:
    assert rank.at(3) is Action.PASS
    assert rank.relaxed == 1


def test_every_order_raises_the_flag(rank: Rank) -> None:
    rank.hears(m.Hold(), m.Release(stop_step=5), m.Resume(), m.Save(order=SAVE), m.Leave(at_step=1))
    assert rank.flags == 5


def test_held_it_stays_until_it_is_released_and_then_runs_to_the_stop_step(rank: Rank) -> None:
    rank.hears(m.Hold())
    assert rank.at(3) is None
    rank.hears(m.Release(stop_step=5))
    assert [rank.at(step) for step in (3, 4)] == [Action.PASS, Action.PASS]
    assert rank.at(5) is Action.QUIESCE
    assert rank.at(5) is None, "it has said so once"
    assert rank.relaxed == 0


def test_it_quiesces_before_it_saves_and_saves_once(rank: Rank) -> None:
    rank.hears(m.Hold(), m.Release(stop_step=5), m.Save(order=SAVE))
    assert [rank.at(5) for _ in range(3)] == [Action.QUIESCE, Action.SAVE, None]


def test_a_hold_that_comes_again_takes_nothing_back(rank: Rank) -> None:
    rank.hears(m.Hold(), m.Release(stop_step=5), m.Hold())
    assert [rank.at(4), rank.at(5)] == [Action.PASS, Action.QUIESCE]
    rank.hears(m.Hold())
    assert rank.at(5) is None


def test_what_was_called_off_holds_nobody_and_the_next_hold_begins_anew(rank: Rank) -> None:
    rank.hears(m.Hold(), m.Release(stop_step=5))
    assert rank.at(5) is Action.QUIESCE
    rank.hears(m.Resume())
    assert rank.at(5) is Action.PASS
    rank.hears(m.Hold())
    assert rank.at(6) is None
    rank.hears(m.Release(stop_step=7))
    assert rank.at(7) is Action.QUIESCE


@pytest.mark.parametrize(("at_step", "leaves"), [(None, [3, 4, 5]), (5, [5])])
def test_it_leaves_at_once_or_behind_the_common_step(
    rank: Rank, at_step: int | None, leaves: list[int]
) -> None:
    rank.hears(m.Hold(), m.Leave(at_step=at_step))
    assert [step for step in (3, 4, 5) if rank.at(step) is Action.LEAVE] == leaves


def test_who_waits_is_woken_by_the_next_order(rank: Rank) -> None:
    found: list[Action] = []
    rank.hears(m.Hold())
    waiting = threading.Thread(
        target=lambda: found.append(rank.orders.next(3, lambda: None)[0]), daemon=True
    )
    waiting.start()
    while rank.at(3) is not None:
        pass
    rank.hears(m.Resume())
    waiting.join(JOIN_S)
    assert found == [Action.PASS]


# --- how long its steps and phases take ---------------------------------------------------------


def test_steps_that_are_seen_together_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = [0]
    monkeypatch.setattr("drainfsm.runtime.rank.progress.monotonic_ms", lambda: now_ms[0])
    times = StepTimes(step=0)
    for step, at_ms in ((1, 100), (5, 4_100)):
        now_ms[0] = at_ms
        times.saw(step)
    assert times.longest_ms == 1_000


def test_of_a_phase_the_longest_time_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = [0]
    monkeypatch.setattr("drainfsm.runtime.rank.progress.monotonic_ms", lambda: now_ms[0])
    phases = LearnedPhases()
    for took_ms in (5_000, 2_000):
        phase = phases.begin("eval", expected_s=None)
        now_ms[0] += took_ms
        phases.end(phase)
    assert phases.begin("eval", expected_s=None).left_ms() == 5_000
