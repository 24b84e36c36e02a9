"""The rank's session: held at a boundary, released to a step, saving, leaving."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar, cast

import pytest

from drainfsm.core.events import HealthyStepReached
from drainfsm.core.orders import CheckpointSettings, RestoreTarget, SaveOrder
from drainfsm.errors import AgentUnreachableError, ConfigError
from drainfsm.runtime.rank.attach import attach_session
from drainfsm.runtime.rank.session import RankSession
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import Codec, encode_frame, receive

T = TypeVar("T", bound=m.Message | HealthyStepReached)
JOIN_S = 60.0

WELCOME = m.Attached(
    rank=3,
    world_size=8,
    job_id="job",
    epoch=2,
    store_url="file:///store",
    settings=CheckpointSettings(),
    restore=None,
)


class FakeAgent:
    """The other end of a session's socket."""

    def __init__(self, welcome: m.Attached = WELCOME) -> None:
        self.connection, ranks_end = socket.socketpair()
        self.connection.settimeout(JOIN_S)
        self.ranks_fd = ranks_end.fileno()
        self.session: RankSession = RankSession(welcome, ranks_end)
        self._codec: Codec[m.FromRank] = Codec(m.FromRank)

    def order(self, message: m.ToRank) -> None:
        self.connection.sendall(encode_frame(message))

    def hear(self, kind: type[T]) -> T:
        """The next message of that kind; others are passed over."""
        while True:
            message = receive(self.connection, self._codec)
            if isinstance(message, kind):
                return message


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    fake = FakeAgent()
    yield fake
    fake.session.close()
    fake.connection.close()


@contextmanager
def training(loop: Callable[[], None]) -> Iterator[None]:
    """The training loop on a thread of its own; it has ended when the context has."""
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    yield
    thread.join(JOIN_S)
    assert not thread.is_alive(), "the training loop hangs"


def until_left(session: RankSession, done: list[int]) -> Callable[[], None]:
    def loop() -> None:
        step = 0
        while not session.step_done(step):
            step += 1
        done.append(step)

    return loop


def test_without_a_drain_no_step_is_the_last(agent: FakeAgent) -> None:
    assert not any(agent.session.step_done(step) for step in range(1_000))
    assert agent.hear(HealthyStepReached).step == 0
    assert not agent.session.draining


def test_a_rank_runs_to_the_stop_step_saves_there_and_leaves(agent: FakeAgent) -> None:
    session, done, saved = agent.session, list[int](), list[SaveOrder]()
    handled = list[str]()
    session.on_quiesced(lambda: handled.append("quiesced"))

    def save(order: SaveOrder) -> None:
        saved.append(order)
        session.report_staged(order.generation_id, 1)

    session.on_save(save)
    with training(until_left(session, done)):
        agent.hear(HealthyStepReached)
        agent.order(m.Hold())
        held_at = agent.hear(m.Position).step
        stop_step = held_at + 5
        agent.order(m.Release(stop_step=stop_step))
        assert agent.hear(m.Quiesced).step == stop_step
        assert handled == ["quiesced"]
        assert session.draining
        order = SaveOrder(generation_id="g", step=stop_step, durable_by_unix_ms=1)
        agent.order(m.Save(order=order))
        assert agent.hear(m.Staged).generation_id == "g"
        agent.order(m.Leave(at_step=stop_step))
    assert done == [stop_step]
    assert saved == [order]


class Watched(RankSession):
    """Notes in which order the two variables are used that the main and the reader thread share."""

    seen: ClassVar[list[str]] = []

    @property
    def last_step(self) -> int:
        self.seen.append("read step")
        return self._step

    @last_step.setter
    def last_step(self, step: int) -> None:
        self.seen.append("write step")
        self._step = step

    @property
    def _attention(self) -> bool:
        self.seen.append("read flag")
        return self._flag

    @_attention.setter
    def _attention(self, flag: bool) -> None:
        self.seen.append(f"flag {flag}")
        self._flag = flag


def test_the_step_is_written_before_the_flag_is_read_and_read_after_it_is_raised() -> None:
    """Which is why no rank runs more than one step beyond what was reported for it."""
    watched = Watched(WELCOME, None)
    Watched.seen.clear()
    watched.step_done(0)
    assert Watched.seen == ["write step", "read flag"]
    Watched.seen.clear()
    watched.on_order(m.Hold())
    assert Watched.seen == ["flag True", "read step"]


def test_no_rank_runs_more_than_one_step_beyond_what_was_reported(agent: FakeAgent) -> None:
    """The order of two lines in ``step_done`` and in ``on_order``, with threads switched often."""
    session = agent.session
    stop = threading.Event()

    def loop() -> None:
        step = 0
        while not stop.is_set():
            session.step_done(step)
            step += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    chance = random.Random(7)
    try:
        with training(loop):
            for _ in range(400):
                agent.order(m.Hold())
                reported = agent.hear(m.Position).step
                agent.order(m.Release(stop_step=reported + 1))
                assert agent.hear(m.Quiesced).step == reported + 1
                agent.order(m.Resume())
                for _ in range(chance.randrange(200)):
                    pass
            stop.set()
            agent.order(m.Leave(at_step=None))
    finally:
        sys.setswitchinterval(interval)


def test_a_drain_that_is_called_off_lets_the_rank_run_on(agent: FakeAgent) -> None:
    session, done = agent.session, list[int]()
    with training(until_left(session, done)):
        agent.hear(HealthyStepReached)
        agent.order(m.Hold())
        held_at = agent.hear(m.Position).step
        agent.order(m.Resume())
        agent.order(m.Ask())
        while agent.hear(m.Position).step <= held_at + 1:
            agent.order(m.Ask())
        agent.order(m.Leave(at_step=None))
    assert done[0] > held_at


def test_ranks_that_leave_at_a_common_step_run_up_to_it(agent: FakeAgent) -> None:
    session, done = agent.session, list[int]()
    with training(until_left(session, done)):
        agent.hear(HealthyStepReached)
        agent.order(m.Hold())
        held_at = agent.hear(m.Position).step
        agent.order(m.Leave(at_step=held_at + 3))
    assert done == [held_at + 3]


def test_a_save_that_raises_is_reported_and_the_rank_stays_until_it_may_leave(
    agent: FakeAgent,
) -> None:
    session, done = agent.session, list[int]()

    def fail(order: SaveOrder) -> None:
        raise OSError("No space left on device")

    session.on_save(fail)
    with training(until_left(session, done)):
        agent.hear(HealthyStepReached)
        agent.order(m.Hold())
        stop_step = agent.hear(m.Position).step + 1
        agent.order(m.Release(stop_step=stop_step))
        agent.hear(m.Quiesced)
        order = SaveOrder(generation_id="g", step=stop_step, durable_by_unix_ms=1)
        agent.order(m.Save(order=order))
        failed = agent.hear(m.SaveFailed)
        assert (failed.generation_id, failed.reason) == ("g", "OSError: No space left on device")
        agent.order(m.Leave(at_step=None))
    assert done == [stop_step]


@pytest.mark.parametrize("given_up", [True, False])
def test_a_save_without_a_handler_is_told_unless_it_was_given_up(
    agent: FakeAgent, given_up: bool
) -> None:
    session, done = agent.session, list[int]()
    with training(until_left(session, done)):
        agent.hear(HealthyStepReached)
        agent.order(m.Hold())
        stop_step = agent.hear(m.Position).step + 1
        agent.order(m.Release(stop_step=stop_step))
        agent.hear(m.Quiesced)
        if given_up:
            agent.order(m.Abort(generation_id="g"))
        for name in ("g", "h"):
            order = SaveOrder(generation_id=name, step=stop_step, durable_by_unix_ms=1)
            agent.order(m.Save(order=order))
        failed = [agent.hear(m.SaveFailed).generation_id for _ in range(1 if given_up else 2)]
        agent.order(m.Leave(at_step=None))
    assert failed == (["h"] if given_up else ["g", "h"])
    assert done == [stop_step]


def test_the_last_step_is_saved_before_the_session_reports_no_more(agent: FakeAgent) -> None:
    session = agent.session
    session.on_close(lambda: session.report_save_began("g", 7))
    session.close()
    assert isinstance(agent.hear(m.Message), m.SaveBegan)
    agent.hear(m.Detach)


def test_a_session_is_not_closed_before_the_save_in_flight_is_finished(agent: FakeAgent) -> None:
    session = agent.session
    session.on_quiesced(lambda: session.report_durable("g", [], 7))
    session.close()
    assert agent.hear(m.DurableFiles).generation_id == "g"
    agent.hear(m.Detach)


def test_a_save_that_was_given_up_is_known(agent: FakeAgent) -> None:
    agent.order(m.Abort(generation_id="g"))
    agent.order(m.Ask())
    agent.hear(m.Position)
    assert agent.session.save_aborted("g")
    assert not agent.session.save_aborted("h")


def test_phases_are_told_with_how_long_they_are_expected_to_go_on(agent: FakeAgent) -> None:
    session = agent.session

    def asked() -> m.Position:
        agent.order(m.Ask())
        return agent.hear(m.Position)

    assert (asked().phase, asked().phase_left_ms) == ("startup", None)
    session.step_done(0)
    assert asked().phase == "train"
    with session.phase("eval", expected_s=100):
        position = asked()
        assert position.phase == "eval"
        assert position.phase_left_ms is not None
        assert 0 < position.phase_left_ms <= 100_000
    assert asked().phase == "train"
    with session.phase("eval"):
        assert asked().phase_left_ms is not None, "learned from the first time"


def test_a_rank_answers_while_its_main_thread_is_busy(agent: FakeAgent) -> None:
    """This test is the main thread, and calls nothing of the session."""
    agent.order(m.Hold())
    assert agent.hear(m.Position).step == -1


class Index:
    """A number of numpy, or an integer tensor."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    def __sub__(self, other: int) -> Index:
        return Index(self.value - other)

    def __rfloordiv__(self, other: int) -> Index:
        return Index(other // self.value)


def test_steps_may_be_counted_in_numbers_of_numpy(agent: FakeAgent) -> None:
    for step in range(8):
        assert not agent.session.step_done(step)
    agent.session.step_done(cast(int, Index(8)))
    agent.order(m.Ask())
    assert agent.hear(m.Position).step == 8
    agent.order(m.Leave(at_step=9))
    while not agent.session.draining:
        time.sleep(0.01)
    assert agent.session.step_done(cast(int, Index(9)))


def test_a_step_that_is_no_whole_number_is_the_scripts_mistake(agent: FakeAgent) -> None:
    with pytest.raises(TypeError, match="float"):
        agent.session.step_done(cast(int, 0.5))


def test_a_phase_that_lasts_for_ever_and_is_named_by_a_file_has_no_expected_end(
    agent: FakeAgent,
) -> None:
    with agent.session.phase("eval of \udcff", expected_s=float("inf")):
        agent.order(m.Ask())
        position = agent.hear(m.Position)
        assert (position.phase, position.phase_left_ms) == ("eval of \\udcff", None)
    with agent.session.phase(cast(str, None)):
        agent.order(m.Ask())
        assert agent.hear(m.Position).phase == "None"


def test_a_restored_rank_stands_at_the_step_of_its_checkpoint() -> None:
    target = RestoreTarget(generation_id="g", manifest_digest="d", step=41, world_size=8)
    fake = FakeAgent(
        m.Attached(
            rank=3,
            world_size=8,
            job_id="job",
            epoch=2,
            store_url="file:///store",
            settings=CheckpointSettings(),
            restore=target,
        )
    )
    fake.order(m.Hold())
    assert fake.hear(m.Position).step == 41
    fake.session.close()
    fake.connection.close()


def test_a_forked_child_does_not_hold_the_connection_open(agent: FakeAgent) -> None:
    """The end of a rank that is killed could not be noticed otherwise."""
    os.fstat(agent.ranks_fd)
    pid = os.fork()
    if pid == 0:
        try:
            os.fstat(agent.ranks_fd)
        except OSError:
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    agent.order(m.Hold())
    assert agent.hear(m.Position).step == -1, "the rank itself still has it"


def test_without_an_agent_training_runs_as_if_there_was_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session: RankSession = attach_session(environ={"RANK": "0", "WORLD_SIZE": "4"})
    assert (session.rank, session.world_size, session.restore_target) == (0, 4, None)
    assert not any(session.step_done(step) for step in range(100))
    session.report_staged("g", 1)
    assert not session.draining
    session.close()
    assert "no agent" in caplog.text


def test_an_agent_that_has_gone_is_told_with_what_to_do() -> None:
    with pytest.raises(AgentUnreachableError, match="set it to nothing to train without one"):
        attach_session(environ={"DRAINFSM_SOCKET": "/nonexistent/agent.sock"})


def test_a_launcher_variable_that_is_no_number_is_named() -> None:
    environ = {"DRAINFSM_SOCKET": "/nonexistent/agent.sock", "RANK": "first"}
    with pytest.raises(ConfigError, match="RANK is 'first'"):
        attach_session(environ=environ)


LONELY = """
import socket, sys, time
from drainfsm.core.orders import CheckpointSettings
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.rank.session import RankSession
ours, theirs = socket.socketpair()
session = RankSession(m.Attached(rank=0, world_size=1, job_id="j", epoch=1, store_url="",
                             settings=CheckpointSettings(), restore=None), ours)
theirs.close()
time.sleep(60)
"""


def test_a_rank_that_its_agent_cannot_understand_says_why_and_is_not_started_again() -> None:
    refusing = LONELY.replace(
        "theirs.close()",
        "from drainfsm.runtime.wire.frames import encode_frame\n"
        "theirs.sendall(encode_frame(m.Refused(reason='got a float')))\ntheirs.close()",
    )
    done = subprocess.run([sys.executable, "-c", refusing], capture_output=True, timeout=JOIN_S)
    assert done.returncode == 1
    assert b"refused what this rank says: got a float" in done.stderr


def test_a_rank_whose_agent_died_ends_by_itself() -> None:
    done = subprocess.run([sys.executable, "-c", LONELY], capture_output=True, timeout=JOIN_S)
    assert done.returncode == 75
    assert b"the agent is gone" in done.stderr
