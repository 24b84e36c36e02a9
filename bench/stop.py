"""What ``step_done`` costs while no drain is on (G10)."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Case, Size, Topic, at_least, at_most
from bench.ranks import Ranks
from drainfsm.core.orders import CheckpointSettings
from drainfsm.runtime.rank.session import RankSession
from drainfsm.runtime.wire import rank_messages as m

WARM_UP_STEPS = 10
"""The first steps are reported to the agent."""


@contextmanager
def attached() -> Iterator[RankSession]:
    """A session whose agent listens and says nothing."""
    ours, agent = socket.socketpair()
    threading.Thread(target=listen, args=(agent,), daemon=True).start()
    session: RankSession = RankSession(welcome(), ours)
    for step in range(WARM_UP_STEPS):
        session.step_done(step)
    yield session
    session.close()
    agent.close()


def welcome() -> m.Attached:
    return m.Attached(
        rank=0,
        world_size=2,
        job_id="bench",
        epoch=1,
        store_url="",
        settings=CheckpointSettings(),
        restore=None,
    )


def listen(agent: socket.socket) -> None:
    while agent.recv(4096):
        pass


class Flag:
    def __init__(self) -> None:
        self.up = False


def _attribute(flag: Flag, times: int) -> float:
    began = time.thread_time_ns()
    for _ in range(times):
        if flag.up:
            break
    return (time.thread_time_ns() - began) / times


def _event(event: threading.Event, times: int) -> float:
    began = time.thread_time_ns()
    for _ in range(times):
        if event.is_set():
            break
    return (time.thread_time_ns() - began) / times


def _step_done(step_done: Callable[[int], bool], times: int) -> float:
    began = time.thread_time_ns()
    for step in range(times):
        if step_done(step):
            break
    return (time.thread_time_ns() - began) / times


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    times = size.pick(200_000, 50_000)
    flag, event = Flag(), threading.Event()
    with (
        attached() as session,
        tempfile.TemporaryDirectory() as directory,
        Ranks(
            "bench.stop_rank",
            world_size=2,
            directory=Path(directory),
            times=size.pick(500, 100),
        ) as ranks,
    ):
        yield {
            "attribute read": lambda: _attribute(flag, times),
            "threading.Event": lambda: _event(event, times),
            "drainfsm: step_done": lambda: _step_done(session.step_done, times),
            "gloo all_reduce, 2 ranks": lambda: ranks.ask("all_reduce"),
            "Lightning's way, 2 ranks": lambda: ranks.ask("lightning"),
            "Megatron's way, 2 ranks": lambda: ranks.ask("megatron"),
        }


TOPIC = Topic(
    name="stop",
    title="Asking after every step whether to stop",
    unit="ns a step",
    note="CPU time (collectives: wall time), the loop around it included. A real session with its "
    "reader thread. Lightning's and Megatron's ways are written with torch directly: the tensor, "
    "the collective and the item() that they do after every batch; their packages are not used.",
    open=opened,
    ratios=(
        at_most("G10", "step_done, beside an attribute read (floor)",
                "drainfsm: step_done", "attribute read", goal=5, gate=4.5),
        at_least("G10", "one gloo all_reduce, beside step_done",
                 "gloo all_reduce, 2 ranks", "drainfsm: step_done", goal=1_000, gate=1_800),
        at_least("G10", "Lightning's broadcast, beside step_done",
                 "Lightning's way, 2 ranks", "drainfsm: step_done", goal=1_000, gate=1_800),
        at_least("G10", "Megatron's all_reduce, beside step_done",
                 "Megatron's way, 2 ranks", "drainfsm: step_done", goal=1_000, gate=2_200),
    ),
)  # fmt: skip
