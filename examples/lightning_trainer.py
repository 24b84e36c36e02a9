"""PyTorch Lightning: `drain(trainer)` before `fit`, and a loader whose position can be saved.

The Trainer saves nothing by itself here: drainfsm does, at a notice and with `--every-steps N`.
"""

import os
import time

import lightning.pytorch as pl
import torch
from torch.utils.data import DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from drainfsm.frameworks.lightning import drain

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # torchrun says so


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def training_step(self, batch, index):
        (rows,) = batch
        loss = self.net(rows).square().mean()
        if RANK == 0:
            print(f"step {self.global_step} loss {loss.item():.6f}", flush=True)
        time.sleep(0.05)
        return loss


data = TensorDataset(torch.randn(4_000, 8, generator=torch.Generator().manual_seed(0)))
sampler = DistributedSampler(data, num_replicas=WORLD_SIZE, rank=RANK, seed=1)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=100,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
drain(trainer)
trainer.fit(Model(), StatefulDataLoader(data, batch_size=4, sampler=sampler))
