"""``Stateful`` objects as in the examples of torchtitan and torchft: DDP, and FSDP2."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

import drainfsm
from drainfsm.frameworks.dcp import drain
from drainfsm_kit.framework_driver import Trace, parse, seed_rank
from drainfsm_kit.framework_loop import Data, Loop, NativeDcp, Plain

options = parse()
rank = int(os.environ["RANK"])
session = drainfsm.attach() if options.hook else None
dist.init_process_group("gloo")
plain = Plain(options)
data = Data(options, rank)
trace = Trace(options)
seed_rank(rank)
common: Any = {
    "options": options,
    "trace": trace,
    "data": data,
    "learn": plain.learn,
    "judge": plain.judge,
}
if session is not None:
    app: Any = object() if options.misuse == "not_stateful" else plain
    loader: Any = object() if options.misuse == "loader_without_position" else data.loader
    checkpoint = drain(session, {"app": app}, loader=loader)
    start = checkpoint.restore() if options.misuse != "restore_forgotten" else 0
    loop = Loop(
        step_done=lambda done, last: last and checkpoint.step_done(done - 1),
        phase=session.phase,
        **common,
    )
else:
    native = NativeDcp(options=options, state={"app": plain}, data=data)
    start = native.start()
    loop = Loop(step_done=native.step_done, **common)
whole = loop.run(start)
if session is not None:
    session.close()
if whole:
    trace.finished(plain.model, plain.optimizer)
dist.destroy_process_group()
