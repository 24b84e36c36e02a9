"""The smallest loop: one process, a model, an optimizer. Five lines are for drainfsm."""

import time

import torch

import drainfsm

STEPS = 1_000

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

session = drainfsm.attach()  # finds the agent that started this; without one it does nothing
checkpoint = session.checkpoint(model=model, optimizer=optimizer)  # whatever must come back
for step in range(checkpoint.restore(), STEPS):  # from 0, or from the step after the saved one
    data = torch.randn(16, 8)  # the random state is saved, so a resumed run draws on where it was
    loss = ((model(data) - data.sum(dim=1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
    time.sleep(0.05)  # a real step takes longer
    if checkpoint.step_done(step):  # in a drain: everything is saved, leave the loop
        break
session.close()
