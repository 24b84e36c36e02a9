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
    settings = CheckpointSettings(
        every_steps=EVERY_STEPS, verify="checksums", on_refused="fallback"
    )
    agent = job.start([sys.executable, "-c", script()], checkpoint=settings)
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


def test_a_damaged_generation_is_replaced_by_the_one_before_and_never_left_on(
    job: RunningJob,
) -> None:
    drained(job, epoch=1)
    commits = job.find(e.CheckpointCommitted, 1)
    (published,) = job.find(e.ManifestPublished, 1)
    path = job.store / "generations" / published.generation_id / "rank00000" / "weights.json"
    path.write_bytes(bytes(path.stat().st_size))
    agent = job.start(
        [sys.executable, "-c", script()],
        checkpoint=CheckpointSettings(verify="checksums", on_refused="fallback"),
    )
    restored = job.wait_for(e.CheckpointRestored, epoch=2)
    assert restored.generation_id == commits[-1].generation_id
    (refused,) = restored.refused
    assert refused.generation_id == published.generation_id
    assert "weights.json has checksum" in refused.reason
    job.wait_for(e.HealthyStepReached, epoch=2)
    job.notify(in_s=1.0)  # too short for a save
    assert agent.wait() == 75, agent.output()
    assert job.find(e.ManifestPublished, 2) == []
    (requeued,) = job.find(e.RequeueRecorded, 2)
    assert requeued.record.generation_id == restored.generation_id
    assert requeued.record.world_size == 1
    assert "is damaged" in agent.output()
