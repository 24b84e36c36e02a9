"""DDP, and data whose position is saved: no sample is seen twice, none is left out.

torch's own DataLoader cannot say where it is. StatefulDataLoader takes the same arguments and can,
also with workers; StatefulDistributedSampler gives every rank its part of a shuffled epoch.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import drainfsm

STEPS, SAMPLES, BATCH = 10_000, 100_000, 4

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # the same model on every rank
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.arange(float(SAMPLES)).unsqueeze(1))
sampler = StatefulDistributedSampler(data, num_replicas=world_size, rank=rank, seed=1)
loader = StatefulDataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=1)


def batches():
    epoch = sampler.epoch  # restored with the loader: it says in which order the samples come
    while True:  # a new epoch begins where the one before ends, also inside a resumed run
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


session = drainfsm.attach()
checkpoint = session.checkpoint(model=model, optimizer=optimizer, loader=loader)
first = checkpoint.restore()  # before the loader is asked for its first batch
stream = batches()
for step in range(first, STEPS):
    (batch,) = next(stream)
    loss = model(batch / SAMPLES).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} rank {rank} samples {batch.flatten().int().tolist()}", flush=True)
    time.sleep(0.05)
    if checkpoint.step_done(step):  # every rank is asked for the same step
        break
session.close()
dist.destroy_process_group()
