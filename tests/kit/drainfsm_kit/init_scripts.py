"""Training scripts in the forms that people write, for ``drainfsm init``. Each runs as it stands.

Every one trains ``STEPS`` optimizer steps and writes its weights to ``weights.pt``. With
``PAUSE_AT`` in the environment the data stop once, at that item, until the file ``go`` is there.
"""

from __future__ import annotations

STEPS = 24

_HEAD = """\
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    taken = 0

    def __len__(self):
        return 16

    def __getitem__(self, index):
        Numbers.taken += 1
        if Numbers.taken == int(os.environ.get("PAUSE_AT", "-1")):
            open("paused", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
        return torch.tensor([float(index), 1.0])


torch.manual_seed(7)
"""

RANGE = (
    _HEAD.replace("from torch.utils.data import DataLoader, Dataset\n", "").replace(
        "class Numbers(Dataset)", "class Numbers"
    )
    + """
data = Numbers()
model = nn.Linear(2, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(24):
    loss = model(data[step % 16]).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "weights.pt")
"""
)

EPOCHS = (
    _HEAD
    + """

def train(model, train_loader, optimizer, epoch):
    model.train()
    for batch in train_loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    train_loader = DataLoader(Numbers(), batch_size=2, shuffle=True)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 4):
        train(model, train_loader, optimizer, epoch)
        scheduler.step()
    torch.save(model.state_dict(), "weights.pt")


if __name__ == "__main__":
    main()
"""
)

TRAINER = (
    _HEAD
    + """

class Trainer:
    def __init__(self, model, train_data, optimizer):
        self.model = model
        self.train_data = train_data
        self.optimizer = optimizer

    def _run_batch(self, batch):
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        for batch in self.train_data:
            self._run_batch(batch)

    def train(self, max_epochs: int):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)


def prepare_dataloader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)


model = nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
Trainer(model, prepare_dataloader(Numbers(), 2), optimizer).train(3)
torch.save(model.state_dict(), "weights.pt")
"""
)

ACCUMULATION = (
    _HEAD
    + """
\tdef main():
\t\tmodel = nn.Linear(2, 1)
\t\topt = torch.optim.AdamW(model.parameters(), lr=1e-2)
\t\tsched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=24)
\t\tloader = DataLoader(Numbers(), batch_size=1)
\t\tglobal_step, counted = 0, 0
\t\tfor epoch in range(0, 3):
\t\t\tfor i, batch in enumerate(loader):
\t\t\t\tloss = model(batch).square().mean() / 2
\t\t\t\tloss.backward()
\t\t\t\tif (i + 1) % 2 == 0:
\t\t\t\t\topt.step()
\t\t\t\t\tsched.step()
\t\t\t\t\topt.zero_grad()
\t\t\t\t\tglobal_step += 1
\t\tassert global_step == 24, global_step
\t\ttorch.save(model.state_dict(), "weights.pt")
\tmain()
""".replace("\n\t", "\n")
)

WHILE = (
    _HEAD
    + """

def main():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = Numbers()
    step = 0
    while step < 24:
        loss = model(data[step % 16]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    torch.save(model.state_dict(), "weights.pt")


main()
"""
)

SAMPLER = (
    _HEAD.replace("import DataLoader, Dataset", "import DataLoader, Dataset, DistributedSampler")
    + """
data = Numbers()
sampler = DistributedSampler(data, num_replicas=1, rank=0)
loader = DataLoader(data, batch_size=2, sampler=sampler)
model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "weights.pt")
"""
)

SCRIPTS = {
    "range": RANGE,
    "epochs": EPOCHS,
    "trainer": TRAINER,
    "accumulation": ACCUMULATION,
    "while": WHILE,
    "sampler": SAMPLER,
}
