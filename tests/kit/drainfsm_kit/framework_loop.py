"""The training loop of the drivers whose framework leaves it to the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from drainfsm_kit.framework_driver import (
    Options,
    Trace,
    network,
    training_samples,
    validation_samples,
)

Batch = dict[str, Tensor]


@dataclass
class Data:
    """Shuffled samples of one rank, and where it stands in them."""

    options: Options
    rank: int
    world_size: int = 2

    def __post_init__(self) -> None:
        samples = training_samples(self.options, world_size=self.world_size)
        self.sampler: Any = StatefulDistributedSampler(
            samples, num_replicas=self.world_size, rank=self.rank, shuffle=True
        )
        generator = torch.Generator().manual_seed(self.rank)
        self.loader: Any = StatefulDataLoader(
            samples, batch_size=self.options.batch, sampler=self.sampler, generator=generator
        )

    def validation(self) -> Iterator[Batch]:
        samples = validation_samples(self.options, world_size=self.world_size)
        sampler: Any = DistributedSampler(
            samples, num_replicas=self.world_size, rank=self.rank, shuffle=False
        )
        yield from StatefulDataLoader(samples, batch_size=self.options.batch, sampler=sampler)


@dataclass(kw_only=True)
class Loop:
    """``learn`` does one micro-batch, with the optimizer step where one is due, and returns its
    loss. ``step_done`` is called after each micro-batch; True: leave."""

    options: Options
    trace: Trace
    data: Data
    learn: Callable[[Batch, bool], Tensor]
    judge: Callable[[Batch], Tensor]
    step_done: Callable[[int, bool], bool]
    """Gets the number of optimizer steps done, and whether one has just been done."""

    phase: Callable[[str], AbstractContextManager[None]] = lambda _name: nullcontext()

    def run(self, start: int) -> bool:
        """``start``: optimizer steps that are done. False: it was told to leave."""
        done, total = start, self.options.epochs * self.options.steps_per_epoch
        validations = 0
        while done < total:
            epoch, within = divmod(done, self.options.steps_per_epoch)
            self.data.sampler.set_epoch(epoch)
            # Empty where the loader was restored at the very end of an epoch.
            for index, batch in enumerate(self.data.loader, within * self.options.accumulate):
                self.trace.reach(f"batch:{epoch}:{index}")
                last = (index + 1) % self.options.accumulate == 0
                loss = self.learn(batch, last)
                self.trace.batch(epoch, index, batch["id"].tolist(), loss)
                done += last
                every = self.options.validate_every
                if last and every and done % every == 0:
                    validations += 1
                    self._validate(validations)
                if self.step_done(done, last):
                    return False
        return True

    def _validate(self, number: int) -> None:
        with self.phase("validation"):
            self.trace.reach(f"validation:{number}")
            losses = [self.judge(batch) for batch in self.data.validation()]
        self.trace.validated(torch.stack(losses).sum())


class Plain:
    """Model, optimizer and scheduler of torch: DDP, or FSDP2. After ``init_process_group``."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.model: Any = network()
        if options.sharding == "ddp":
            self.model = DistributedDataParallel(self.model)
        else:
            fully_shard(self.model, mesh=init_device_mesh("cpu", (2,)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.7)

    def learn(self, batch: Batch, last: bool) -> Tensor:
        loss = self.loss(batch)
        if last:
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return loss

    def loss(self, batch: Batch) -> Tensor:
        """Of one micro-batch, with its gradients."""
        loss = mse_loss(self.model(batch["row"]), batch["target"])
        (loss / self._options.accumulate).backward()  # type: ignore[no-untyped-call]
        return loss

    @torch.no_grad()
    def judge(self, batch: Batch) -> Tensor:
        self.model.eval()
        loss = mse_loss(self.model(batch["row"]), batch["target"])
        self.model.train()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """As in the example of torch's documentation."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optim"],
        )
        self.scheduler.load_state_dict(state["scheduler"])


@dataclass(kw_only=True)
class NativeDcp:
    """Saves and resumes by ``torch.distributed.checkpoint``, as its users do without drainfsm."""

    options: Options
    state: dict[str, Any]
    data: Data

    def step_done(self, done: int, last: bool) -> bool:
        """Never leaves."""
        if last and done == self.options.native_save_at:
            save(self.state, checkpoint_id=f"{self.options.native}/dcp")
            own = {"loader": self.data.loader.state_dict(), "torch": torch.get_rng_state()}
            torch.save({**own, "done": done}, self._own())
        return False

    def start(self) -> int:
        if not self.options.native_resume:
            return 0
        load(self.state, checkpoint_id=f"{self.options.native}/dcp")
        own = torch.load(self._own(), weights_only=False)
        self.data.loader.load_state_dict(own["loader"])
        self.data.loader.state_dict()
        torch.set_rng_state(own["torch"])
        return int(own["done"])

    def _own(self) -> str:
        return f"{self.options.native}/rank{self.data.rank}.pt"
