"""What a version has stored, for the golden corpus: ``python -m drainfsm_kit.release --record``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from drainfsm.views.history import read_file
from drainfsm.views.replay import replay_job
from drainfsm_kit.histories import states
from drainfsm_kit.release.smoke import Installation

JOB = "golden"
STEPS, EVERY = 80, 10
SETTINGS = f"[checkpoint]\nevery_steps = {EVERY}\n"
RESTORED = "restored.json"
TORCH = f"""\
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import drainfsm

torch.manual_seed(3)
data = [torch.tensor([float(number)]) for number in range(32)]
sampler = DistributedSampler(data, num_replicas=1, rank=0)
loader = StatefulDataLoader(data, batch_size=4, sampler=sampler)
model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.1), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
session = drainfsm.attach()
checkpoint = session.checkpoint(
    model=model, optimizer=optimizer, scheduler=scheduler, loader=loader
)
first = checkpoint.restore()
if first:
    moments = optimizer.state_dict()["state"]
    found = {{
        "first": first,
        "epoch": sampler.epoch,
        "random": torch.rand(3).tolist(),
        "rate": scheduler.get_last_lr(),
        "batch": next(iter(loader)).flatten().tolist(),
        "weights": {{name: value.tolist() for name, value in model.state_dict().items()}},
        "moments": [[value.tolist() for value in one.values()] for one in moments.values()],
    }}
    Path("{RESTORED}").write_text(json.dumps(found, indent=1) + "\\n")
    session.close()
    raise SystemExit
Path("first-steps").write_text("\\n")
for epoch in range(1_000_000):
    sampler.set_epoch(epoch)
    for batch in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        time.sleep(0.05)
        if checkpoint.step_done(session.last_step + 1):
            break
    if session.preempted:
        break
session.close()
"""


def record(venv: Path, version: str, corpus: Path) -> str:
    """One job of that version: drained twice, and then run to its end. Its store and its log go
    into the corpus, where nothing of that name may be."""
    store, history = corpus / "stores" / version, corpus / "histories" / f"chained_{version}.jsonl"
    for path in (store, history):
        if path.exists():
            raise SystemExit(f"{path} is there: what a release has stored is never written anew")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "drainfsm.toml").write_text(SETTINGS)
        job = Installation(venv, directory, job=JOB, steps=STEPS)
        said = [job.drain(begun=0), job.drain(begun=1), job.finish()]
        job.says("export", "--job", JOB, "-o", str(history))
        shutil.copytree(directory / "store", store)
    replays = states(replay_job(read_file(history).logs))
    history.with_suffix(".states").write_text(replays, encoding="utf-8")
    return f"{len(said)} attempts, {len(replays.splitlines())} lines of states"


def record_torch(version: str, corpus: Path) -> str:
    """A generation that torch wrote, of a job that was drained in a later epoch, and what a restore
    of it gives, by this environment."""
    target = corpus / "torch" / version
    if target.exists():
        raise SystemExit(f"{target} is there: what a release has stored is never written anew")
    venv = Path(sys.prefix)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        Installation(venv, directory, job=JOB, script=TORCH).drain(begun=0)
        shutil.copytree(directory / "store", target / "store")
        restored = restored_from(target / "store", directory / "again")
    (target / RESTORED).write_text(restored, encoding="utf-8")
    return f"{len(restored)} bytes of what is restored"


def restored_from(store: Path, directory: Path) -> str:
    """What this environment's drainfsm restores from a copy of the store."""
    shutil.copytree(store, directory / "store")
    Installation(Path(sys.prefix), directory, job=JOB, script=TORCH).finish()
    return (directory / RESTORED).read_text(encoding="utf-8")
