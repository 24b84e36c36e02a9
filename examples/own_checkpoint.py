"""A job that writes its checkpoints itself keeps its format: here torch.save, one file a rank.

drainfsm hashes what `save` wrote, makes it durable, and commits it as a whole or not at all.
Random states and the position of the data are yours to save: see `save`.
"""

import time

import torch

import drainfsm

STEPS = 10_000

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def save(directory, step):
    """Into this directory, which is new and this rank's alone. Back when the files are complete."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "random": torch.get_rng_state()}, directory / "state.pt")


def load(directory, step):
    state = torch.load(directory / "state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])


session = drainfsm.attach()
checkpoint = session.own_checkpoint(save=save, load=load, saver="torch-save-1")
for step in range(checkpoint.restore(), STEPS):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
    time.sleep(0.05)
    if checkpoint.step_done(step):
        break
session.close()
