"""DeepSpeed on the CPU: ``ddp`` is ZeRO 0, ``sharded`` is ZeRO 2."""

from __future__ import annotations

import os
from typing import Any

import deepspeed
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

import drainfsm
from drainfsm.frameworks.deepspeed import drain
from drainfsm_kit.framework_driver import Trace, network, parse, seed_rank
from drainfsm_kit.framework_loop import Batch, Data, Loop

options = parse()
rank = int(os.environ["RANK"])
session = drainfsm.attach() if options.hook else None
config = {
    "train_micro_batch_size_per_gpu": options.batch,
    "gradient_accumulation_steps": options.accumulate,
    "zero_optimization": {"stage": 0 if options.sharding == "ddp" else 2},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "checkpoint": {"use_node_local_storage": options.misuse == "node_local"},
}
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)
deepspeed.init_distributed(dist_backend="gloo")
engine, *_ = deepspeed.initialize(
    model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config
)
data = Data(options, rank)
trace = Trace(options)
seed_rank(rank)


def learn(batch: Batch, _last: bool) -> Tensor:
    loss = mse_loss(engine(batch["row"]), batch["target"])
    engine.backward(loss)
    engine.step()
    return loss


@torch.no_grad()
def judge(batch: Batch) -> Tensor:
    engine.eval()
    loss = mse_loss(engine(batch["row"]), batch["target"])
    engine.train()
    return loss


def native(done: int, last: bool) -> bool:
    if not last or done != options.native_save_at:
        return False
    engine.save_checkpoint(options.native, tag="native")
    torch.save(
        {"loader": data.loader.state_dict(), "torch": torch.get_rng_state()},
        f"{options.native}/rank{rank}.pt",
    )
    return False


def digest() -> str:
    """DeepSpeed keeps the optimizer's state of its own shares."""
    import hashlib

    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().numpy().tobytes())
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    for state in inner.state.values():
        for key in sorted(state):
            whole.update(torch.as_tensor(state[key]).numpy().tobytes())
    return whole.hexdigest()


start = 0
if session is not None:
    wrong = model if options.misuse == "no_engine" else engine
    loader: Any = object() if options.misuse == "loader_without_position" else data.loader
    checkpoint = drain(session, wrong, loader=loader)
    if options.misuse != "restore_forgotten":
        start = checkpoint.restore()
    skipped = options.misuse == "calls_left_out"
    loop = Loop(
        options=options,
        trace=trace,
        data=data,
        learn=learn,
        judge=judge,
        step_done=lambda done, _last: not (skipped and done < 2) and checkpoint.step_done(),
        phase=session.phase,
    )
else:
    if options.native_resume:
        engine.load_checkpoint(options.native, tag="native")
        saved = torch.load(f"{options.native}/rank{rank}.pt", weights_only=False)
        data.loader.load_state_dict(saved["loader"])
        data.loader.state_dict()
        torch.set_rng_state(saved["torch"])
        start = engine.global_steps
    loop = Loop(options=options, trace=trace, data=data, learn=learn, judge=judge, step_done=native)
whole = loop.run(start)
if session is not None:
    session.close()
if whole:
    trace.finished_as(digest())
deepspeed.comm.destroy_process_group()
