"""The session of a rank whose training loop a drain has ended, or of one that has just finished."""

from __future__ import annotations

import socket
import time

from drainfsm.core.orders import CheckpointSettings
from drainfsm.runtime.rank.session import RankSession
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import encode_frame
from drainfsm.session import Session

LAST_STEP = 5
MARKS = {"drainfsm/job": "llm", "drainfsm/preempted_epoch": 2, "drainfsm/preempted_step": LAST_STEP}

WELCOME = m.Attached(
    rank=0,
    world_size=1,
    job_id="llm",
    epoch=2,
    store_url="file:///store",
    settings=CheckpointSettings(),
    restore=None,
)


def session_after_its_loop(*, preempted: bool = True) -> Session:
    agents_end, ranks_end = socket.socketpair()
    session = Session(RankSession(WELCOME, ranks_end))
    if preempted:
        agents_end.sendall(encode_frame(m.Leave(at_step=LAST_STEP)))
        while not session.draining:
            time.sleep(0.001)
    left = [session.step_done(step) for step in range(LAST_STEP + 1)]
    assert left == [False] * LAST_STEP + [preempted]
    session.close()
    agents_end.close()
    return session
