"""PyTorch Lightning, as a user would drain it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import (
    DDPStrategy,
    ModelParallelStrategy,
)
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from drainfsm.frameworks.lightning import drain
from drainfsm_kit.framework_driver import (
    Options,
    Samples,
    Trace,
    network,
    parse,
    seed_rank,
    training_samples,
    validation_samples,
)


class Model(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, options: Options, trace: Trace) -> None:
        super().__init__()
        self.options, self.trace = options, trace
        self.net = network()
        self.validations = 0
        self.losses: list[Tensor] = []

    def configure_model(self) -> None:
        if self.options.sharding == "sharded":
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        plateau = {"scheduler": scheduler, "monitor": "val_loss", "interval": "epoch"}
        return {"optimizer": optimizer, "lr_scheduler": plateau}

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        self.trace.reach(f"batch:{self.current_epoch}:{index}")
        loss: Tensor = (self.net(batch["row"]) - batch["target"]).square().mean()
        self.trace.batch(self.current_epoch, index, batch["id"].tolist(), loss)
        return loss

    def on_train_start(self) -> None:
        if self.global_step == 0:
            seed_rank(self.trainer.global_rank)

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        if index == 0:
            self.validations += 1
            self.trace.reach(f"validation:{self.validations}")
        loss = (self.net(batch["row"]) - batch["target"]).square().mean()
        self.losses.append(loss)
        self.log("val_loss", loss, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        self.trace.validated(torch.stack(self.losses).mean())
        self.losses.clear()


def strategy(options: Options) -> Any:
    if options.sharding == "sharded":
        return ModelParallelStrategy(
            data_parallel_size=int(os.environ["WORLD_SIZE"]), tensor_parallel_size=1
        )
    return DDPStrategy()


def order(options: Options, samples: Samples) -> dict[str, Any]:
    if options.misuse == "order_not_repeatable":
        return {"shuffle": True}
    world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    return {"sampler": DistributedSampler(samples, num_replicas=world_size, rank=rank, seed=3)}


def native_saves(options: Options) -> list[Any]:
    if not options.native_save_at:
        return []
    saves = ModelCheckpoint(
        options.native,
        filename="steps={step}",
        auto_insert_metric_name=False,
        every_n_train_steps=options.native_save_at,
        save_top_k=-1,
    )
    return [saves]


def main() -> None:
    options = parse()
    trace = Trace(options)
    saves = native_saves(options)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=strategy(options),
        max_epochs=options.epochs,
        accumulate_grad_batches=options.accumulate,
        val_check_interval=options.validate_every * options.accumulate,
        num_sanity_val_steps=0,
        enable_checkpointing=bool(options.misuse == "saves_doubled" or saves),
        callbacks=saves,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        default_root_dir=options.out,
    )
    model = Model(options, trace)
    kind = DataLoader if options.misuse == "loader_without_position" else StatefulDataLoader
    samples = training_samples(options)
    loader = kind(samples, batch_size=options.batch, **order(options, samples))
    validating = DataLoader(validation_samples(options), batch_size=options.batch)
    steps = options.native_save_at
    path = str(Path(options.native) / f"steps={steps}.ckpt") if options.native_resume else None
    if options.hook:
        drain(trainer)
    if options.misuse == "restore_forgotten":
        trainer.ckpt_path = None
    trainer.fit(model, loader, validating, ckpt_path=path)
    if options.misuse == "fitted_twice":
        trainer.fit_loop.max_epochs += 1
        trainer.fit(model, loader, validating)
    trace.finished(model.net, model.optimizers().optimizer)


if __name__ == "__main__":
    main()
