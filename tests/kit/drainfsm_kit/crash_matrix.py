"""Kill writer, coordinator or the whole job at every point of a drain; restart; lose nothing.

    python -m drainfsm_kit.crash_matrix [--store posix|s3] [--jobs N] [--every N]
        [--dir DIR] [--json FILE]

A first run writes down the points that a drain passes, from the notice to the exit. Then one run a
point: two agents with one rank each train and save periodically, a notice comes, the process is
killed at the point, what is left leaves, and the next attempt starts. It must restore a complete
generation that is no older than the newest commit, and go on at the next step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from drainfsm.core.budget import Allowances
from drainfsm.core.events import AttemptStarted, CheckpointCommitted, Exited
from drainfsm.core.manifest import Commit
from drainfsm.core.orders import CheckpointSettings
from drainfsm.errors import AgentUnreachableError
from drainfsm.store import CommitLog, open_store
from drainfsm.store.generations import read_manifest, verify_generation
from drainfsm_kit import crashing
from drainfsm_kit.running import RunningJob, running_job
from drainfsm_kit.s3 import BUCKET, environment, s3_server

NODES = 2
EVERY = 10
STEPS_AFTER = 8
STEPS_MAX = 100_000
NOTICE_S = 40.0
PATIENT = Allowances(
    quiesce_ms=20_000, commit_ms=5_000, exit_margin_ms=3_000, clock_skew_ms=0, barrier_ms=100
)
"""On a busy machine too the save is decided on: these runs are about what follows."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the matrix."""

    point: str
    scope: str
    committed_before: int
    """Newest step that was committed when the next attempt claimed; -1: none."""

    resumed_step: int
    reached: bool
    """False: this run did not pass the point (what runs beside the save differs), nobody died."""

    lost: str
    """What was lost or broken; empty: nothing."""


def record_points(directory: Path, *, bucket: str = "") -> list[str]:
    """The points that an undisturbed drain passes, each once, in order."""
    trace = directory / "trace.txt"
    with running_job(directory, nnodes=NODES, store=_store(bucket, directory)) as job:
        _drain(job, {crashing.TRACE: str(trace), crashing.ARMED: str(directory / "armed")})
        job.wait_until_gone()
        if not job.find(Exited):
            raise AssertionError("the undisturbed drain did not exit")
    return list(dict.fromkeys(trace.read_text().splitlines()))


def run_point(point: str, scope: str, directory: Path, *, bucket: str = "") -> Outcome:
    """Kill at the point, restart, judge."""
    armed = directory / "armed"
    with running_job(directory, nnodes=NODES, store=_store(bucket, directory)) as job:
        _drain(
            job,
            {
                crashing.POINT: point,
                crashing.SCOPE: scope,
                crashing.ARMED: str(armed),
            },
        )
        job.wait_until_gone()
        before = _commits(job)
        newest = before[-1].step if before else -1
        resumed, lost = _restart(job, newest)
        kept = {commit.generation_id for commit in _commits(job)}
        gone = [c.generation_id for c in before if c.generation_id not in kept]
        lost = lost or (f"committed generation(s) {gone} are gone" if gone else "")
        lost = lost or _incomplete(job)
    return Outcome(
        point=point,
        scope=scope,
        committed_before=newest,
        resumed_step=resumed,
        reached=crashing.hit_file(armed).exists(),
        lost=lost,
    )


def _store(bucket: str, directory: Path) -> str:
    """A prefix of the run's own in the bucket (an s3:// URL), or empty: a directory."""
    return f"{bucket}/{directory.name}" if bucket else ""


def _drain(job: RunningJob, variables: dict[str, str]) -> None:
    settings = CheckpointSettings(asynchronous=False)
    command = job.toy("--every", str(EVERY), "--steps", str(STEPS_MAX), "--durably", ranks=1)
    for node in range(NODES):
        ranks = {"RANK": str(node), "WORLD_SIZE": str(NODES), "LOCAL_WORLD_SIZE": "1"}
        job.start(
            command,
            node_rank=node,
            grace_s=NOTICE_S,
            allowances=PATIENT,
            checkpoint=settings,
            variables={**variables, **ranks},
        )
    job.wait_for(CheckpointCommitted)
    with contextlib.suppress(AgentUnreachableError):  # it may die before it can answer
        job.notify(in_s=NOTICE_S, node_rank=NODES - 1)


def _restart(job: RunningJob, newest: int) -> tuple[int, str]:
    """The next attempt runs to its end. First step that it trained, and what went wrong."""
    steps = newest + 1 + STEPS_AFTER
    command = job.toy("--steps", str(steps), "--durably", ranks=1)
    agents = [
        job.start(
            command,
            node_rank=node,
            variables={"RANK": str(node), "WORLD_SIZE": str(NODES), "LOCAL_WORLD_SIZE": "1"},
        )
        for node in range(NODES)
    ]
    codes = [agent.wait() for agent in agents]
    if codes != [0] * NODES:
        return -1, f"the restart exited with {codes}: {agents[0].output()[-400:]}"
    (started,) = job.find(AttemptStarted, epoch=2)
    step = -1 if started.restore is None or started.restore.step is None else started.restore.step
    trained = job.steps(0, epoch=2)
    if not trained or trained[0] != step + 1:
        return -1, f"restored step {step}, trained {trained[:3]}"
    if step < newest:
        return trained[0], f"step {newest} was committed, but step {step} was restored"
    return trained[0], ""


def _commits(job: RunningJob) -> list[Commit]:
    return [c for _, c in CommitLog(open_store(job.store_url), job_id=job.job).commits()]


def _incomplete(job: RunningJob) -> str:
    """The first committed generation that is not whole; empty: all are."""
    store = open_store(job.store_url)
    for commit in _commits(job):
        try:
            manifest = read_manifest(
                store, generation_id=commit.generation_id, digest=commit.manifest_digest
            )
            verify_generation(store, manifest, checksums=True)
        except Exception as error:  # whatever it is, it is a loss
            return f"{commit.generation_id}: {error}"
    return ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--every", type=int, default=1, help="only every N-th point")
    parser.add_argument("--dir", type=Path, help="keep the runs here")
    parser.add_argument("--json", type=Path, help="write the outcomes as data")
    parser.add_argument("--store", choices=("posix", "s3"), default="posix")
    options = parser.parse_args(argv)
    if options.store == "posix":
        return _run(options, bucket="")
    with s3_server() as port, environment(port):
        return _run(options, bucket=f"s3://{BUCKET}")


def _run(options: argparse.Namespace, *, bucket: str) -> int:
    root = options.dir or Path(tempfile.mkdtemp(prefix="drainfsm-crash-"))
    started = time.monotonic()
    points = record_points(root / "undisturbed", bucket=bucket)
    runs = [(p, scope) for p in points for scope in _scopes(p)][:: options.every]
    _print(f"{len(points)} points; {len(runs)} runs")
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        tasks = [
            pool.submit(run_point, point, scope, root / f"run-{number}", bucket=bucket)
            for number, (point, scope) in enumerate(runs)
        ]
        for number, task in enumerate(tasks):
            outcome = task.result()
            outcomes.append(outcome)
            verdict = "ok" if outcome.reached else "ok (not reached)"
            verdict = f"LOST: {outcome.lost}" if outcome.lost else verdict
            _print(
                f"{outcome.scope:8} {outcome.point:70} committed {outcome.committed_before:4} "
                f"resumed {outcome.resumed_step:4} {verdict}"
            )
            if not outcome.lost and options.dir is None:
                shutil.rmtree(root / f"run-{number}", ignore_errors=True)
    losses = [outcome for outcome in outcomes if outcome.lost]
    seconds = time.monotonic() - started
    killed = sum(outcome.reached for outcome in outcomes)
    _print(
        f"{len(points)} points, {len(outcomes)} runs, {killed} killed at their point, "
        f"{len(losses)} losses in {seconds:.0f} s"
    )
    if options.json:
        options.json.write_text(json.dumps([msgspec.to_builtins(o) for o in outcomes], indent=1))
    return 1 if losses else 0


def _scopes(point: str) -> tuple[str, ...]:
    """A rank dies alone; with the agent of node 0 also the whole job."""
    return ("process", "job") if point.startswith("agent0") else ("process",)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
