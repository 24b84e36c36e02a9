"""FSDP2: each rank saves its shards, and a job of another number of ranks takes them.

Start it with two ranks, drain it, and start it again with one (or three) and `--reshard`: models
and optimizers are resharded. Data here is made from the step, so it needs no position.
"""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import drainfsm

STEPS = 10_000

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
mesh = init_device_mesh("cpu", (world_size,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # after fully_shard

session = drainfsm.attach()
checkpoint = session.checkpoint(model=model, optimizer=optimizer)
for step in range(checkpoint.restore(), STEPS):
    generator = torch.Generator().manual_seed(step)
    samples = torch.randn(12, 16, generator=generator)
    loss = model(samples[rank::world_size]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = torch.stack([p.full_tensor().sum() for p in model.parameters()]).sum()
    if rank == 0:
        print(f"step {step} ranks {world_size} parameters {total.item():.6f}", flush=True)
    time.sleep(0.05)
    if checkpoint.step_done(step):
        break
session.close()
dist.destroy_process_group()
