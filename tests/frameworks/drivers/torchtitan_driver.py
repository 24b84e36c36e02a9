"""torchtitan's Trainer with its Llama 3, on the CPU: replicated, and sharded by FSDP2.

torchtitan asks for an accelerator: here it is told that the CPU is one, and its monitor of device
memory, which has no version for it, says nothing. Everything else is torchtitan's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

torch._utils._get_available_device_type = lambda: "cpu"

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import IterableDataset
from torchtitan.components import metrics
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import BaseValidator
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import utils as dist_utils
from torchtitan.models.common import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

from drainfsm.frameworks.torchtitan import drain
from drainfsm_kit.framework_driver import Options, Trace, parse

options = parse()
trace = Trace(options)
LENGTH, VOCABULARY = 16, 2048
metrics.build_device_memory_monitor = lambda: SimpleNamespace(
    device_name="cpu",
    get_peak_stats=lambda: metrics.DeviceMemStats(0, 0, 0, 0, 0, 0),
    reset_peak_stats=lambda: None,
)
dist_utils.set_pg_timeouts = lambda **_: None  # its barrier names a device


class Rows(IterableDataset[Any]):
    """Tokens, each row a function of its number; shuffled anew in every epoch."""

    def __init__(self, *, rank: int, ranks: int, seed: int, rows: int) -> None:
        self._rank, self._ranks, self._seed, self._rows = rank, ranks, seed, rows
        self._at = 0

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            epoch, within = divmod(self._at, self._rows)
            order = torch.Generator().manual_seed(self._seed + epoch)
            number = int(torch.randperm(self._rows * self._ranks, generator=order)[within])
            number = (number + self._rank) % (self._rows * self._ranks)
            row = torch.Generator().manual_seed(self._seed * 100_003 + number)
            tokens = torch.randint(VOCABULARY, (LENGTH + 1,), generator=row)
            self._at += 1
            ids = torch.tensor(number)
            where = torch.tensor(self._at - 1)
            yield {"input": tokens[:-1], "id": ids, "where": where}, tokens[1:]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at = state["at"]


class RowLoader(ParallelAwareDataloader):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):  # type: ignore[misc]
        pass

    def __init__(
        self, config: Config, *, dp_rank: int, dp_world_size: int, local_batch_size: int, **_: Any
    ) -> None:
        rows = options.micro_batches * options.batch
        samples = Rows(rank=dp_rank, ranks=dp_world_size, seed=1, rows=rows)
        super().__init__(samples, dp_rank, dp_world_size, batch_size=local_batch_size)


class NoTokenizer(BaseTokenizer):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return VOCABULARY


class RowValidator(BaseValidator):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(BaseValidator.Config):  # type: ignore[misc]
        enable: bool = True

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__(config=config)
        self._count = 0

    def should_validate(self, step: int) -> bool:
        return step % options.validate_every == 0

    @torch.no_grad()
    def validate(self, model_parts: list[nn.Module], step: int) -> None:
        self._count += 1
        trace.reach(f"validation:{self._count}")
        rows = iter(Rows(rank=0, ranks=1, seed=2, rows=4))
        loss = torch.stack(
            [
                nn.functional.cross_entropy(model_parts[0](inputs["input"][None])[0], labels)
                for inputs, labels in (next(rows) for _ in range(2))
            ]
        )
        trace.validated(loss.sum())


class TracedTrainer(Trainer):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):  # type: ignore[misc]
        pass

    def forward_backward_step(self, *, input_dict: Any, labels: Any, **more: Any) -> Tensor:
        ids, where = input_dict.pop("id"), int(input_dict.pop("where")[0])
        epoch, index = divmod(where // options.batch, options.micro_batches)
        trace.reach(f"batch:{epoch}:{index}")
        loss: Tensor = super().forward_backward_step(input_dict=input_dict, labels=labels, **more)
        trace.batch(epoch, index, ids.tolist(), loss)
        return loss


def config(options: Options) -> Any:
    spec = model_registry("debugmodel")
    layer = spec.model.layers[0]
    layer.attention.inner_attention = ScaledDotProductAttention.Config()  # the others need a GPU
    spec = replace(spec, model=replace(spec.model, layers=[layer]))
    sharded = options.sharding == "sharded"
    result = TracedTrainer.Config(
        model_spec=spec,
        dump_folder=f"{Path(options.out).parent}/titan",
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY),
        tokenizer=NoTokenizer.Config(),
        dataloader=RowLoader.Config(),
        validator=RowValidator.Config(),
        optimizer=replace(default_adamw(lr=8e-4), implementation="foreach"),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(
            local_batch_size=options.batch,
            global_batch_size=options.batch * 2 * options.accumulate,
            seq_len=LENGTH,
            steps=options.epochs * options.steps_per_epoch,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            spmd_backend="partial_dtensor",
            data_parallel_replicate_degree=1 if sharded else 2,
            data_parallel_shard_degree=2 if sharded else 1,
        ),
        activation_checkpoint=None,
        debug=DebugConfig(seed=7),
    )
    result.checkpoint.enable = (
        bool(options.native_save_at) or options.native_resume or options.misuse == "saves_doubled"
    )
    if options.native:
        result.checkpoint.folder = os.path.abspath(options.native)
        result.checkpoint.interval = options.native_save_at or 1_000
        result.checkpoint.last_save_model_only = False
    if options.native_resume:
        result.checkpoint.load_step = options.native_save_at
    return result


trainer = config(options).build()
for module in trainer.model_parts[0].modules():
    if isinstance(module, FSDPModule):
        module.set_force_sum_reduction_for_comms(True)
if options.hook:
    drain(trainer)
    if options.misuse == "drained_twice":
        drain(trainer)
trainer.train()
trainer.close()
if trainer.step == options.epochs * options.steps_per_epoch:
    trace.finished(trainer.model_parts[0], next(iter(trainer.optimizers)))
torch.distributed.destroy_process_group()
