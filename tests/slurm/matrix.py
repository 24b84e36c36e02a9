"""Every way in which Slurm ends a job, against what the agent made of it; then drains in a row.

    python tests/slurm/matrix.py [--drains N] [--only TEXT]

Prints the table of docs/slurm.md. Exit code 1 if a deadline was later than the kill, or a job did
not resume at the step behind the saved one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from drainfsm.core import events as e
from drainfsm.runtime.processes.proc import process
from drainfsm_kit.slurm_cluster import Cluster, SlurmJob, running_cluster

SCRIPTS = Path(__file__).parent
DEPLOY = SCRIPTS.parents[1] / "deploy" / "slurm"
NODES = 17
AT_ONCE = 4
GRACE_S = 20
LONG_S = 400.0


class Row(NamedTuple):
    """One way to end a job. ``{job}`` and ``{node}`` are filled into ``order``."""

    name: str
    order: str
    options: Mapping[str, Any] = MappingProxyType({})
    cluster: str = "default"
    comes_back: str = "slurm"
    """``slurm``: requeued by what ends it; ``owner``: by a ``scontrol requeue`` afterwards; empty:
    it should not."""

    killed: bool = True
    script: str = ""
    """Of ``deploy/slurm``, with its own last act; empty: the witness, which stays to be killed."""


PREEMPT = "sbatch -p main --exclusive -w {node} -o /dev/null --wrap 'sleep 1'"
ROWS = (
    Row("time limit of 1 minute", "", {"time": "1"}, comes_back="owner"),
    Row(
        "the same, `--signal=B:USR1@20`",
        "",
        {"time": "1", "signal": "B:USR1@20", "DRAINFSM_ADAPTER_SLURM_WARNING_S": "20"},
        comes_back="owner",
    ),
    Row(
        "the same, `one-node.sbatch`, requeues itself",
        "",
        {"time": "1", "signal": "B:USR1@20", "DRAINFSM_ADAPTER_SLURM_WARNING_S": "20"},
        killed=False,
        script="one-node",
    ),
    Row(
        "the same, `several-nodes.sbatch`, `--signal=USR1@20`",
        "",
        {"time": "1", "signal": "USR1@20", "DRAINFSM_ADAPTER_SLURM_WARNING_S": "20"},
        killed=False,
        script="several-nodes",
    ),
    Row(
        "limit lowered by an admin",
        "scontrol update jobid={job} EndTime=now+20",
        comes_back="owner",
    ),
    Row(
        "limit lowered below the time used",
        "scontrol update jobid={job} EndTime=now",
        comes_back="owner",
    ),
    Row(f"preemption, GraceTime={GRACE_S}", PREEMPT, {"partition": "low"}),
    Row("the same, PreemptMode=CANCEL", PREEMPT, {"partition": "lowcancel"}, comes_back="owner"),
    Row(
        "preemption, `preempt_send_user_signal`",
        PREEMPT,
        {"partition": "low", "signal": "B:USR1@5"},
        cluster="user signal",
    ),
    Row("preemption, GraceTime=0", PREEMPT, {"partition": "low"}, cluster="no grace"),
    Row("`scancel`", "scancel {job}", comes_back=""),
    Row("`scontrol requeue`", "scontrol requeue {job}"),
    Row("node set to down", "scontrol update nodename={node} state=down reason=matrix"),
    Row(
        "end of its reservation",
        "",
        {"reservation": "matrix", "time": "30"},
        comes_back="owner",
    ),
    Row(
        "node set to drain",
        "scontrol update nodename={node} state=drain reason=matrix",
        {"DRAINFSM_ADAPTER_SLURM_NODES_S": "1"},
        comes_back="owner",
        killed=False,
    ),
    Row(
        "SIGTERM to the batch script alone",
        "scancel --batch --signal=TERM {job}",
        comes_back="owner",
        killed=False,
    ),
)
CLUSTERS = {
    "default": {"SLURM_TEST_GRACE": str(GRACE_S), "SLURM_TEST_NODES": str(NODES)},
    "user signal": {
        "SLURM_TEST_GRACE": str(GRACE_S),
        "SLURM_TEST_NODES": "1",
        "SLURM_TEST_CTLDPARAMS": "preempt_send_user_signal",
    },
    "no grace": {"SLURM_TEST_GRACE": "0", "SLURM_TEST_NODES": "1"},
}


class Seen(NamedTuple):
    row: Row
    cause: str
    sent: str
    deadline_s: float
    """From the order (or the start of the job, where there was none)."""

    killed_s: float | None
    decision: str
    saved_step: int | None
    resumed_step: int | None

    @property
    def problem(self) -> str:
        if self.killed_s is not None and self.killed_s < self.deadline_s:
            return "killed before the deadline"
        if self.row.killed and self.killed_s is None:
            return "not killed"
        if self.row.comes_back and self.resumed_step != (self.saved_step or -1) + 1:
            return "resumed at the wrong step"
        return ""

    def line(self) -> str:
        killed = "never" if self.killed_s is None else f"{self.killed_s:.1f} s"
        after = "" if self.killed_s is None else f"{self.killed_s - self.deadline_s:+.1f} s"
        resumed = "-" if self.resumed_step is None else str(self.resumed_step)
        cells = (
            self.row.name,
            self.sent,
            self.cause,
            f"{self.deadline_s:.1f} s",
            killed,
            after,
            self.decision,
            resumed + (f" **{self.problem}**" if self.problem else ""),
        )
        return f"| {' | '.join(cells)} |"


HEAD = """\
| what happened | batch script sent | cause | deadline | killed | after it | decision | resumed |
|---|---|---|---|---|---|---|---|
"""


def play(row: Row, cluster: Cluster, node: str) -> Seen:
    """One row, on a node of its own."""
    if "reservation" in row.options:
        order = f"reservationname=matrix starttime=now duration=1 users=root nodes={node}"
        cluster.run("scontrol", "create", "reservation", *order.split(), "flags=ignore_jobs")
    witness = cluster.directory / f"witness-{node}"
    job = _submit(row, cluster, node, witness)
    job.wait_steps(5)
    began = time.time()
    if row.order:
        cluster.run("sh", "-c", row.order.format(job=job.job_id, node=node))
    _until(lambda: job.seen.state(1).phase.over, "the drain's end", job)
    killed = _last_sign(Path(f"{witness}.0"), job) if row.killed else None
    sent = _signals(Path(f"{witness}.0"), killed=row.killed)
    if row.script:
        sent = "SIGUSR1 to the agent" if "SIGUSR1 says no more" in job.output() else sent
    resumed = _resume(row, job, node)
    state = job.seen.state(1)
    assert state.current.deadline_unix_ms is not None
    return Seen(
        row=row,
        cause=state.current.cause,
        sent=sent,
        deadline_s=state.current.deadline_unix_ms / 1_000 - began,
        killed_s=None if killed is None else killed - began,
        decision=_decision(job),
        saved_step=state.attempt.committed.step if state.attempt.committed else None,
        resumed_step=resumed,
    )


def _submit(row: Row, cluster: Cluster, node: str, witness: Path) -> SlurmJob:
    options = {"DRAINFSM_ADAPTER_SLURM_POLL_S": "2", **row.options}
    if row.script:
        return cluster.job(DEPLOY / f"{row.script}.sbatch", **options)
    return cluster.job(
        SCRIPTS / "witness.sbatch",
        nodelist=node,
        exclusive="",
        WITNESS=str(witness),
        DRAINFSM_ADAPTER_SLURM_REQUEUE="none",
        **options,
    )


def _until(found: Callable[[], object], what: str, job: SlurmJob) -> None:
    what = f"{what}; the job said:\n{job.output()}"
    job.cluster.wait(lambda: found() or None, what=what, timeout_s=LONG_S)


def _last_sign(witness: Path, job: SlurmJob) -> float:
    """When the processes of the first run were killed. On a busy machine either may stall that
    looks: what was seen last counts."""
    pid = int(Path(f"{witness}.pid").read_text())
    seen = 0.0

    def gone() -> bool:
        nonlocal seen
        lives = (found := process(pid)) is not None and found.state != "Z"
        seen = time.time() if lives else seen
        return not lives

    _until(gone, "kill", job)
    return max(seen, witness.stat().st_mtime)


def _resume(row: Row, job: SlurmJob, node: str) -> int | None:
    if not row.comes_back:
        return None
    if "down" in row.order or "drain" in row.order:
        update = ("scontrol", "update", f"nodename={node}")
        if row.killed:
            job.wait_state("PENDING", "RUNNING")
        shown = job.cluster.run("scontrol", "-o", "show", "node", node)
        if "DRAIN" in shown or "DOWN" in shown:
            job.cluster.run(*update, "state=resume")
    if row.comes_back == "owner":
        if row.killed:
            job.wait_state("TIMEOUT", "PREEMPTED", "CANCELLED", "FAILED")
        job.cluster.run("scontrol", "requeue", job.job_id)
    if "reservation" in row.options:
        job.cluster.run("scontrol", "update", f"jobid={job.job_id}", "reservationname=")
    _until(lambda: job.seen.steps(0, 2), "step of the next attempt", job)
    step = job.seen.steps(0, 2)[0]
    job.cancel()
    return step


def _signals(witness: Path, *, killed: bool) -> str:
    """What the batch script of the first run was sent."""
    file = Path(f"{witness}.signals")
    sent = file.read_text().split() if file.exists() else []
    return ", ".join(dict.fromkeys([*sent, *(["SIGKILL"] if killed else [])])) or "nothing"


def _decision(job: SlurmJob) -> str:
    skipped = job.seen.find(e.SaveSkipped)
    if skipped:
        return f"skipped: {skipped[0].reason}"
    saved = job.seen.find(e.ManifestPublished)
    return f"saved step {saved[0].step}" if saved else "save given up"


def in_a_row(cluster: Cluster, node: str, *, count: int) -> list[str]:
    """One job that is drained again and again, by preemption and by its owner in turns."""
    job = cluster.job(
        DEPLOY / "one-node.sbatch",
        partition="low",
        nodelist=node,
        exclusive="",
        DRAINFSM_ADAPTER_SLURM_POLL_S="1",
    )
    lines = []
    for drain in range(1, count + 1):
        _until(lambda: len(job.seen.steps(0, drain)) >= 3, f"steps of attempt {drain}", job)  # noqa: B023
        order = PREEMPT if drain % 2 else "scontrol requeue {job}"
        cluster.run("sh", "-c", order.format(job=job.job_id, node=node))
        _until(lambda: job.seen.steps(0, drain + 1), f"attempt {drain + 1}", job)  # noqa: B023
        state = job.seen.state(drain)
        assert state.attempt.committed is not None
        saved, last = state.attempt.committed.step, job.seen.steps(0, drain)[-1]
        first = job.seen.steps(0, drain + 1)[0]
        bad = "" if (saved, first) == (last, last + 1) else " **wrong**"
        lines.append(f"| {drain} | {state.current.cause} | {last} | {saved} | {first}{bad} |")
        sys.stderr.write(f"drain {drain}: {state.current.cause}, resumed at {first}{bad}\n")
    job.cancel()
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drains", type=int, default=20)
    parser.add_argument("--only", default="", help="rows with this text in their name")
    options = parser.parse_args()
    rows = [row for row in ROWS if options.only in row.name]
    seen: list[Seen] = []
    lines: list[str] = []
    version = ""
    for name, settings in CLUSTERS.items():
        mine = [row for row in rows if row.cluster == name]
        drains = options.drains if name == "default" else 0
        if not mine and not drains:
            continue
        with running_cluster(SCRIPTS, **settings) as cluster, ThreadPoolExecutor(AT_ONCE) as pool:
            version = cluster.run("scontrol", "--version").strip()
            row_nodes = zip(mine, cluster.nodes, strict=False)
            played = [pool.submit(play, row, cluster, node) for row, node in row_nodes]
            if drains:
                lines = in_a_row(cluster, cluster.nodes[-1], count=drains)
            for one in played:
                seen.append(one.result())
                sys.stderr.write(seen[-1].line() + "\n")
    sys.stdout.write(f"\n{version}, {time.strftime('%Y-%m-%d', time.gmtime())}\n\n{HEAD}")
    sys.stdout.write("".join(one.line() + "\n" for one in seen))
    if lines:
        head = "\n| drain | cause | last step | saved | resumed at |\n|---|---|---|---|---|\n"
        sys.stdout.write(head + "\n".join(lines) + "\n")
    bad = [one for one in seen if one.problem] + [line for line in lines if "wrong" in line]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
