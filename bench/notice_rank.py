"""A rank that trains, and says when its main thread has seen that it is asked to stop.

python -m bench.notice_rank SESSION_FD RAW_FD
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time

import torch

from bench.stop import WARM_UP_STEPS, Flag, welcome
from drainfsm.runtime.rank.session import RankSession

WIDTH = 160
"""A step of this matrix takes some hundred microseconds, with the interpreter lock released."""


def main() -> None:
    torch.set_num_threads(1)
    session: RankSession = RankSession(welcome(), socket.socket(fileno=int(sys.argv[1])))
    raw, signalled = Flag(), Flag()
    reader = socket.socket(fileno=int(sys.argv[2]))
    threading.Thread(target=_read, args=(reader, raw), daemon=True).start()
    signal.signal(signal.SIGUSR1, lambda *_: setattr(signalled, "up", True))
    matrix = torch.randn(WIDTH, WIDTH)
    for step in range(WARM_UP_STEPS):
        matrix = torch.tanh(matrix @ matrix)
        session.step_done(step)
    print("ready", flush=True)
    while True:
        matrix = torch.tanh(matrix @ matrix)
        step += 1
        # The flag that step_done looks at; looked at here, since step_done would wait.
        ordered = session._attention
        if not (ordered or raw.up or signalled.up):
            continue
        print(time.monotonic_ns(), flush=True)
        if sys.stdin.readline() == "":
            break
        if ordered:
            session.step_done(step)
        raw.up = signalled.up = False
        print("on", flush=True)
    session.close()


def _read(connection: socket.socket, flag: Flag) -> None:
    while connection.recv(1):
        flag.up = True


if __name__ == "__main__":
    main()
