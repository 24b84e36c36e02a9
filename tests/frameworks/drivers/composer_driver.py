"""Composer on the CPU, with DDP. Its FSDP needs CUDA.

Composer 0.32 asks for torch below 2.7.1: it is installed without that requirement here, and the two
operators that a torchvision built for CUDA misses on a CPU are declared, but never called.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

_operators: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
for name in ("nms", "qnms"):
    _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from composer import Callback, ComposerModel, Event, Trainer
from composer.utils import dist
from torch import Tensor
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from drainfsm.frameworks.composer import drain
from drainfsm_kit.framework_driver import (
    Trace,
    network,
    parse,
    training_samples,
    validation_samples,
)

options = parse()
trace = Trace(options)
rank = int(os.environ["RANK"])
os.environ.setdefault("NODE_RANK", "0")


class Model(ComposerModel):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        if self.training:
            traced.micro_batch()
        out: Tensor = self.network(batch["row"])
        return out

    def loss(self, outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        loss = mse_loss(outputs, batch["target"])
        traced.learned(batch["id"], loss)
        return loss

    def eval_forward(self, batch: dict[str, Tensor], outputs: Any = None) -> Tensor:
        traced.validates()
        out = self.forward(batch)
        traced.losses.append(mse_loss(out, batch["target"]))
        return out

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        return {}

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        pass


class Traced(Callback):  # type: ignore[misc]
    """What the driver tells the test; it stands before drainfsm's hook."""

    def __init__(self) -> None:
        self.micro = 0
        self.validations = 0
        self.losses: list[Tensor] = []
        self.where = (0, 0)

    def batch_start(self, state: Any, logger: Any) -> None:
        self.micro = 0
        time = state.timestamp
        self.where = (time.epoch.value, time.batch_in_epoch.value * options.accumulate)

    def micro_batch(self) -> None:
        trace.reach(f"batch:{self.where[0]}:{self.where[1] + self.micro}")

    def learned(self, ids: Tensor, loss: Tensor) -> None:
        trace.batch(self.where[0], self.where[1] + self.micro, ids.tolist(), loss)
        self.micro += 1

    def validates(self) -> None:
        if not self.losses:
            self.validations += 1
            trace.reach(f"validation:{self.validations}")

    def eval_end(self, state: Any, logger: Any) -> None:
        trace.validated(torch.stack(self.losses).sum())
        self.losses.clear()


traced = Traced()
hook = drain() if options.hook else None


def loader(samples: Any, *, batch: int, shuffle: bool) -> Any:
    sampler = dist.get_sampler(samples, shuffle=shuffle)
    return DataLoader(samples, batch_size=batch, sampler=sampler)


dist.initialize_dist("cpu")
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
saving: dict[str, Any] = {}
saves = options.native_save_at and not options.native_resume
if saves or options.misuse == "saves_doubled":
    saving = {
        "save_folder": options.native or f"{Path(options.out).parent}/own",
        "save_interval": f"{options.native_save_at or 2}ba",
        "save_filename": "ba{batch}.pt",
        "save_overwrite": True,
    }
resumes = f"{options.native}/ba{options.native_save_at}.pt" if options.native_resume else None
if hook is not None and options.misuse != "restore_forgotten":
    resumes = hook.load_path
steps = options.epochs * options.steps_per_epoch
trainer = Trainer(
    model=model,
    optimizers=optimizer,
    train_dataloader=loader(
        training_samples(options), batch=options.batch * options.accumulate, shuffle=True
    ),
    eval_dataloader=loader(validation_samples(options), batch=options.batch, shuffle=False),
    eval_interval=f"{options.validate_every}ba",
    device_train_microbatch_size=options.batch,
    max_duration=f"{steps}ba",
    callbacks=[traced] if hook is None else [traced, hook],
    load_path=resumes,
    device="cpu",
    seed=7,
    progress_bar=False,
    auto_log_hparams=False,
    **saving,
)
assert Event.BATCH_CHECKPOINT  # the event after which a step is done
trainer.fit()
if trainer.state.timestamp.batch.value == options.epochs * options.steps_per_epoch:
    trace.finished(model, optimizer)
trainer.close()
