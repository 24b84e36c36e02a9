"""The script of docs/embed.md that writes its own checkpoints, under the real agent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from drainfsm.cli.main import main
from drainfsm.core import events as e
from drainfsm.core.manifest import Manifest
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.words import OnRefused, Verification
from drainfsm.store import open_store
from drainfsm.store.generations import read_manifest
from drainfsm_kit.running import RunningJob

EMBED = Path(__file__).parents[2] / "docs" / "embed.md"
EVERY_STEPS = 50_000


def script() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", EMBED.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = [block for block in blocks if "own_checkpoint" in block]
    return str(found)


def drained(job: RunningJob, *, epoch: int) -> tuple[Manifest, float]:
    """One attempt with a periodic save and a drain: its manifest, and the weight that it saved."""
    settings = CheckpointSettings(
        every_steps=EVERY_STEPS, verify=Verification.CHECKSUMS, on_refused=OnRefused.FALLBACK
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


def test_a_flipped_bit_that_ends_the_job_is_in_the_log_and_in_what_is_read_from_it(
    job: RunningJob, capsys: pytest.CaptureFixture[str]
) -> None:
    drained(job, epoch=1)
    (published,) = job.find(e.ManifestPublished, 1)
    path = job.store / "generations" / published.generation_id / "rank00000" / "weights.json"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    agent = job.start(
        [sys.executable, "-c", script()],
        checkpoint=CheckpointSettings(verify=Verification.CHECKSUMS),
    )
    assert agent.wait() == 1, agent.output()
    (refused,) = job.find(e.RestoreRefused, 2)
    assert (refused.generation_id, refused.step) == (published.generation_id, published.step)
    assert (refused.error, refused.rank, refused.node) == ("ManifestMismatchError", 0, 0)
    assert "weights.json has checksum" in refused.reason
    assert job.find(e.CheckpointRestored, 2) == []
    (finished,) = job.find(e.AttemptFinished, 2)
    assert finished.exit_code == 1
    told = f"{published.generation_id} (step {published.step}) is not restored"
    assert told in agent.output()
    where = ["--job", job.job, "--state-dir", str(job.state_dir)]
    assert main(["explain", *where]) == 0
    assert f"{published.generation_id} (step {published.step}) was not" in capsys.readouterr().out
    assert main(["report", *where, "--json"]) == 0
    attempts = json.loads(capsys.readouterr().out)["jobs"][0]["attempts"]
    assert [one["restore_refused"] for one in attempts] == [[], [msgspec.to_builtins(refused)]]


def drill(job: RunningJob, *command: str) -> tuple[int, e.CheckpointDrilled]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "drainfsm", "drill", "restore", "--json"),
            *("--store", job.store_url, "--job", job.job, "--", sys.executable, "-c", *command),
        ],
        capture_output=True,
        cwd=job.directory,
        check=False,
    )
    assert b"asyncio" not in done.stderr, done.stderr.decode()
    return done.returncode, msgspec.json.decode(done.stdout, type=e.CheckpointDrilled)


def test_a_restore_is_drilled_by_the_jobs_own_command(job: RunningJob) -> None:
    manifest, _ = drained(job, epoch=1)
    before = sorted(job.store.rglob("*"))
    code, drilled = drill(job, f"print('to stderr')\n{script()}")
    assert (code, drilled.outcome, drilled.verification) == (0, "verified", "restored")
    assert (drilled.generation_id, drilled.step) == (manifest.generation_id, manifest.step)
    assert "1 rank(s) of the job" in drilled.detail
    (_, record) = sorted(set(job.store.rglob("*")) - set(before))
    assert record.parent.name == "drills" or record.parent.parent.name == "drills"

    code, drilled = drill(job, "raise SystemExit(3)")
    assert (code, drilled.outcome) == (1, "failed")
    assert drilled.detail == "the command ended with 3 and had not restored it"

    step = "import drainfsm\nsession = drainfsm.attach()\nsession.step_done(0)"
    code, drilled = drill(job, step)
    assert (code, drilled.outcome) == (1, "failed")
    assert "does it call restore()?" in drilled.detail

    path = job.store / "generations" / manifest.generation_id / "rank00000" / "weights.json"
    path.write_bytes(bytes(path.stat().st_size))
    code, drilled = drill(job, script())
    assert (code, drilled.outcome) == (1, "failed")
    assert "rank 0: ManifestMismatchError: " in drilled.detail


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
        checkpoint=CheckpointSettings(verify=Verification.CHECKSUMS, on_refused=OnRefused.FALLBACK),
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
