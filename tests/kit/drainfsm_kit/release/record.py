"""What a version has stored, for the golden corpus: ``python -m drainfsm_kit.release --record``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from drainfsm.views.history import read_file
from drainfsm.views.replay import replay_job
from drainfsm_kit.histories import states
from drainfsm_kit.release.smoke import Installation

JOB = "golden"
STEPS, EVERY = 80, 10
SETTINGS = f"[checkpoint]\nevery_steps = {EVERY}\n"


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
