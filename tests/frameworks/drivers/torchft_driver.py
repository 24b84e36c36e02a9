"""torchft: one replica group of two ranks, with a lighthouse on this machine."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

import drainfsm
from drainfsm.frameworks.dcp import drain
from drainfsm_kit.framework_driver import Trace, parse, seed_rank
from drainfsm_kit.framework_loop import Batch, Data, Loop, NativeDcp, Plain

options = parse()
rank = int(os.environ["RANK"])
session = drainfsm.attach() if options.hook else None
dist.init_process_group("gloo")
lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1) if rank == 0 else None
where = [None if lighthouse is None else lighthouse.address()]
dist.broadcast_object_list(where)
plain = Plain(options)
manager = Manager(
    pg=ProcessGroupGloo(),
    min_replica_size=1,
    load_state_dict=plain.load_state_dict,
    state_dict=plain.state_dict,
    replica_id="group_0",
    lighthouse_addr=where[0],
    hostname="127.0.0.1",
    use_async_quorum=False,
)
optimizer = Optimizer(manager, plain.optimizer)
data = Data(options, rank)
trace = Trace(options)
seed_rank(rank)
begun = False


def learn(batch: Batch, last: bool) -> Tensor:
    """Gradients are averaged over replica groups by the manager, which commits the step."""
    global begun
    if not begun:
        optimizer.zero_grad()
        begun = True
    loss = plain.loss(batch)
    if last:
        begun = False
        for parameter in plain.model.parameters():
            local = getattr(parameter.grad, "to_local", lambda grad=parameter.grad: grad)()
            manager.allreduce(local).wait()
        optimizer.step()
        plain.scheduler.step()
    return loss


state: dict[str, Any] = {"app": plain, "torchft": manager}
common: Any = {
    "options": options,
    "trace": trace,
    "data": data,
    "learn": learn,
    "judge": plain.judge,
}
if session is not None:
    checkpoint = drain(session, state, loader=data.loader)
    start = checkpoint.restore() if options.misuse != "restore_forgotten" else 0
    loop = Loop(
        step_done=lambda done, last: last and checkpoint.step_done(manager.current_step() - 1),
        phase=session.phase,
        **common,
    )
else:
    native = NativeDcp(options=options, state=state, data=data)
    start = native.start()
    loop = Loop(step_done=native.step_done, **common)
whole = loop.run(start)
if session is not None:
    session.close()
if whole:
    trace.finished(plain.model, plain.optimizer)
manager.shutdown(wait=False)
dist.barrier()
if lighthouse is not None:
    lighthouse.shutdown()
dist.destroy_process_group()
