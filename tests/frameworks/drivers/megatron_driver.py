"""Megatron Core on the CPU: ``ddp`` is two data-parallel ranks, ``sharded`` two tensor-parallel.

Its DistributedDataParallel and distributed optimizer need CUDA: gradients are averaged here by
hand, and the optimizer is its FP32Optimizer. Checkpoints are written and read by Megatron, which
asks CUDA twice: whether copies are done, and where to put a number.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.serialization import load, save
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.optimizer import FP32Optimizer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn.functional import dropout, mse_loss, relu

import drainfsm
from drainfsm.frameworks.megatron import drain
from drainfsm_kit.framework_driver import WIDTH, Trace, parse, seed_rank
from drainfsm_kit.framework_loop import Batch, Data, Loop

torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]


class Network(MegatronModule):  # type: ignore[misc]
    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        torch.manual_seed(7)
        common: dict[str, Any] = {"config": settings, "init_method": nn.init.xavier_normal_}
        self.up = ColumnParallelLinear(WIDTH, 32, bias=True, gather_output=False, **common)
        self.down = RowParallelLinear(
            32, 1, bias=True, input_is_parallel=True, skip_bias_add=False, **common
        )

    def forward(self, row: Tensor) -> Tensor:
        hidden, _ = self.up(row)
        out: Tensor
        out, _ = self.down(dropout(relu(hidden), 0.2, self.training))
        return out


def make_state(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                optimizer.state[parameter] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }


class CpuOptimizer(FP32Optimizer):  # type: ignore[misc]
    """Without the scale that its constructor puts on a CUDA device."""

    def __init__(self, *arguments: Any) -> None:
        super(FP32Optimizer, self).__init__(*arguments)
        self.is_stub_optimizer = False


def main() -> None:
    options = parse()
    rank = int(os.environ["RANK"])
    tensor_parallel = 1 if options.sharding == "ddp" else 2
    session = drainfsm.attach() if options.hook else None
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel)
    settings: Any = TransformerConfig(
        num_layers=1,
        hidden_size=WIDTH,
        num_attention_heads=2,
        use_cpu_initialization=True,
        tensor_model_parallel_size=tensor_parallel,
    )

    model = Network(settings)
    identity = {
        "wd_mult": 1.0,
        "lr_mult": 1.0,
        "is_expert_parallel": False,
        "is_decoupled_lr": False,
    }
    inner = torch.optim.AdamW([{"params": list(model.parameters()), **identity}], lr=0.01)

    optimizer = CpuOptimizer(inner, OptimizerConfig(lr=0.01, clip_grad=0.0), make_state)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, step_size=3, gamma=0.7)
    data_rank, data_ranks = (rank, 2) if options.sharding == "ddp" else (0, 1)
    data = Data(options, data_rank, data_ranks)
    trace = Trace(options)
    seed_rank(data_rank)

    def learn(batch: Batch, last: bool) -> Tensor:
        loss = mse_loss(model(batch["row"]), batch["target"])
        (loss / options.accumulate).backward()  # type: ignore[no-untyped-call]
        if last:
            for parameter in model.parameters():
                if data_ranks > 1:
                    dist.all_reduce(parameter.grad, group=parallel_state.get_data_parallel_group())
                    parameter.grad /= data_ranks
                parameter.main_grad = parameter.grad
            inner.step()
            scheduler.step()
            inner.zero_grad()
        return loss

    @torch.no_grad()
    def judge(batch: Batch) -> Tensor:
        model.eval()
        loss = mse_loss(model(batch["row"]), batch["target"])
        model.train()
        return loss

    def digest() -> str:
        whole = hashlib.sha256()
        for parameter in model.parameters():
            entries = inner.state[parameter]
            for value in (parameter, *(entries[key] for key in sorted(entries))):
                whole.update(torch.as_tensor(value).detach().numpy().tobytes())
        return whole.hexdigest()

    def everything(*, loading: bool) -> dict[str, Any]:
        state = {"model": model.sharded_state_dict()}
        state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=loading)
        state["scheduler"] = scheduler.state_dict()
        return state

    def native(done: int, last: bool) -> bool:
        """Megatron's own save, with what a training script keeps beside it."""
        if not last or done != options.native_save_at:
            return False
        os.makedirs(f"{options.native}/megatron", exist_ok=True)
        save(everything(loading=False), f"{options.native}/megatron")
        own = {"loader": data.loader.state_dict(), "torch": torch.get_rng_state()}
        torch.save(own, f"{options.native}/rank{rank}.pt")
        return False

    def resume_natively() -> int:
        loaded = load(everything(loading=True), f"{options.native}/megatron")
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        scheduler.load_state_dict(loaded["scheduler"])
        own = torch.load(f"{options.native}/rank{rank}.pt", weights_only=False)
        data.loader.load_state_dict(own["loader"])
        data.loader.state_dict()
        torch.set_rng_state(own["torch"])
        return int(scheduler.last_epoch)

    common: Any = {"options": options, "trace": trace, "data": data, "learn": learn, "judge": judge}
    if session is not None:
        loader: Any = object() if options.misuse == "loader_without_position" else data.loader
        checkpoint = drain(
            session,
            nn.Linear(1, 1) if options.misuse == "no_megatron_module" else model,
            optimizer,
            scheduler=scheduler,
            loader=loader,
        )
        start = checkpoint.restore() if options.misuse != "restore_forgotten" else 0
        loop = Loop(
            step_done=lambda done, last: last and checkpoint.step_done(done - 1),
            phase=session.phase,
            **common,
        )
    else:
        start = resume_natively() if options.native_resume else 0
        loop = Loop(step_done=native, **common)
    whole = loop.run(start)
    if session is not None:
        session.close()
    if whole:
        trace.finished_as(digest())
    dist.destroy_process_group()


if __name__ == "__main__":  # Megatron starts processes to write with
    main()
