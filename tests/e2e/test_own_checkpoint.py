"""The script of docs/embed.md that writes its own checkpoints, under the real agent."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from drainfsm.core import events as e
from drainfsm.core.manifest import Manifest
from drainfsm.core.orders import CheckpointSettings
from drainfsm.store import open_store
from drainfsm.store.generations import read_manifest
from drainfsm.testing.running import RunningJob

EMBED = Path(__file__).parents[2] / "docs" / "embed.md"
EVERY_STEPS = 50_000


def script() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", EMBED.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = [block for block in blocks if "own_checkpoint" in block]
    return str(found)


def drained(job: RunningJob, *, epoch: int) -> tuple[Manifest, float]:
    """One attempt with a periodic save and a drain: its manifest, and the weight that it saved."""
    agent = job.start(
        [sys.executable, "-c", script()],
        checkpoint=CheckpointSettings(every_steps=EVERY_STEPS, verify="checksums"),
    )
    job.wait_for(e.CheckpointCommitted, epoch=epoch)
    job.notify(in_s=20.0)
    assert agent.wait() == 75, agent.output()
    (published,) = job.find(e.ManifestPublished, epoch)
    manifest = read_manifest(
        open_store(job.store_url),
        generation_id=published.generation_id,
        digest=published.manifest_digest,
    )
    path = job.store / "generations" / published.generation_id / manifest.entries[0].name
    return manifest, json.loads(path.read_text())["w"]


def test_the_script_of_the_page_drains_and_goes_on_where_it_was(job: RunningJob) -> None:
    first, weight = drained(job, epoch=1)
    assert (first.saver, weight) == ("my-json", first.step + 1)
    assert [entry.name for entry in first.entries] == ["rank00000/weights.json"]
    second, weight = drained(job, epoch=2)
    (restored,) = job.find(e.CheckpointRestored, 2)
    assert (restored.step, restored.verification) == (first.step, "checksums")
    assert second.step > first.step
    assert weight == second.step + 1, "one more every step, over both attempts"
