"""Accelerate, as a user would drain it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DataLoaderConfiguration,
    FullyShardedDataParallelPlugin,
    ProjectConfiguration,
)
from torch.utils.data import DataLoader

from drainfsm.frameworks.accelerate import Loop, drain
from drainfsm_kit.framework_driver import (
    Options,
    Trace,
    cpu_ranks_that_accelerate_shards,
    network,
    parse,
    seed_rank,
    training_samples,
    validation_samples,
)


class Native:
    """The loops without drainfsm, with Accelerate's own save and resume."""

    def __init__(self, accelerator: Any, options: Options) -> None:
        self.accelerator, self.options = accelerator, options
        self.steps = 0
        self.batches_done = 0

    def epochs(self, count: int) -> Iterator[int]:
        if self.options.native_resume:
            self.accelerator.load_state(self.options.native)
            self.steps = self.options.native_save_at
        for epoch in range(self.steps // self.options.steps_per_epoch, count):
            self.epoch = epoch
            yield epoch

    def batches(self, loader: Any) -> Iterator[Any]:
        self.batches_done = done = (
            self.steps % self.options.steps_per_epoch * self.options.accumulate
        )
        rest = self.accelerator.skip_first_batches(loader, done) if done else loader
        rest.set_epoch(self.epoch)
        for batch in rest:
            yield batch
            self.batches_done += 1
            if not self.accelerator.sync_gradients:
                continue
            self.steps += 1
            if self.steps == self.options.native_save_at and not self.options.native_resume:
                self.accelerator.save_state(self.options.native)


def main() -> None:
    options = parse()
    trace = Trace(options)
    plugin = None
    if options.sharding == "sharded":
        cpu_ranks_that_accelerate_shards()
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, state_dict_type="SHARDED_STATE_DICT", auto_wrap_policy="no_wrap"
        )
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=options.accumulate,
        fsdp_plugin=plugin,
        dataloader_config=DataLoaderConfiguration(
            use_seedable_sampler=options.misuse != "order_not_repeatable",
            use_stateful_dataloader=options.misuse == "two_places",
            data_seed=3,
        ),
        project_config=ProjectConfiguration(project_dir=options.out),
    )
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if options.misuse == "not_prepared":
        drain(accelerator)
    loader: Any = DataLoader(training_samples(options), batch_size=options.batch, shuffle=True)
    validating: Any = DataLoader(validation_samples(options), batch_size=options.batch)
    model, optimizer, loader, validating = accelerator.prepare(model, optimizer, loader, validating)
    seed_rank(accelerator.process_index)
    loop: Loop | Native = drain(accelerator) if options.hook else Native(accelerator, options)
    if options.misuse == "restore_forgotten":
        next(iter(loop.batches(loader)))
    train(options, trace, accelerator, loop, model, optimizer, loader, validating)
    trace.finished(accelerator.unwrap_model(model), optimizer.optimizer)


def train(
    options: Options,
    trace: Trace,
    accelerator: Any,
    loop: Any,
    model: Any,
    optimizer: Any,
    loader: Any,
    validating: Any,
) -> None:
    validations = 0
    for epoch in loop.epochs(options.epochs):
        for batch in loop.batches(loader):
            index = loop.batches_done
            trace.reach(f"batch:{epoch}:{index}")
            with accelerator.accumulate(model):
                loss = (model(batch["row"]) - batch["target"]).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            trace.batch(epoch, index, batch["id"].tolist(), loss)
            if options.misuse == "saves_doubled":
                accelerator.save_state(f"{options.out}/saved")
            if (index + 1) % (options.validate_every * options.accumulate) == 0:
                validations += 1
                with phase(loop):
                    validate(trace, validations, model, validating)


def phase(loop: Any) -> Any:
    return loop.session.phase("validation") if isinstance(loop, Loop) else contextlib.nullcontext()


def validate(trace: Trace, number: int, model: Any, loader: Any) -> None:
    model.eval()
    trace.reach(f"validation:{number}")
    with torch.no_grad():
        losses = [(model(b["row"]) - b["target"]).square().mean() for b in loader]
    trace.validated(torch.stack(losses).mean())
    model.train()


if __name__ == "__main__":
    main()
