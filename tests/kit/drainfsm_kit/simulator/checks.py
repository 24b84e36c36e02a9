"""What must hold once a simulation is over, whatever went wrong in it."""

from __future__ import annotations

from collections.abc import Iterator

from drainfsm.core.codec import decode_object
from drainfsm.core.requeue import RequeueRecord
from drainfsm.errors import ManifestMismatchError
from drainfsm.runtime.agent.node import OVERDUE_EXIT_MS
from drainfsm_kit.simulator.agent import SimulatedAgent
from drainfsm_kit.simulator.attempt import SimulatedAttempt
from drainfsm_kit.simulator.cluster import Cluster
from drainfsm_kit.simulator.disk import Disk
from drainfsm_kit.simulator.log_checks import (
    late_decision,
    late_end,
    log_problems,
    outcomes,
    stream_problems,
)
from drainfsm_kit.simulator.plan import JOB
from drainfsm_kit.simulator.progress_checks import unmade_progress

EXIT_MS = 1_200
"""After the instant at which an agent ends everything: for what it still closes, each for a
bounded time."""

OWN_MS = 4_200
"""For a node that nobody answers: it waits, kills, and ends."""

LOST_MS = 15_000
"""From noticing that a node is lost to the end of the others: ranks are killed, the requeue record
is tried, the log is shipped, each for a bounded time."""


def problems(cluster: Cluster) -> list[str]:
    """Every rule that is broken; empty: all hold."""
    universe = cluster.universe
    found = [*universe.wrong, *universe.store.wrong]
    known = not universe.betrayed  # else no rule can hold of what the store has forgotten
    for process in universe.processes:
        found += process.bugs
    for attempt in cluster.attempts:
        watcher = attempt.agents[0].watcher
        found += watcher.wrong if watcher is not None else []
        found += _budgets(attempt)
        found += _losses(attempt)
        found += _restores(attempt) if known else []
    for disk in universe.disks:
        for epoch in disk.epochs:
            if known:
                found += (f"epoch {epoch}: {wrong}" for wrong in _log(cluster, disk, epoch))
    if universe.calm:
        found += unmade_progress(cluster)
    if not cluster.over:
        found.append(f"I9: still running at the end: {', '.join(_running(cluster))}")
    return found


def _running(cluster: Cluster) -> Iterator[str]:
    for attempt in cluster.attempts:
        for agent in attempt.agents:
            if not agent.process.dead:
                yield f"agent {agent.process.name}"
            for rank in agent.job.living() if agent.job is not None else ():
                if not rank.out_of_reach:
                    yield f"rank {rank.number} of attempt {attempt.number}"


def _log(cluster: Cluster, disk: Disk, epoch: int) -> Iterator[str]:
    universe = cluster.universe
    records = disk.records(epoch)
    if not disk.doubtful(epoch) and (forgotten := disk.forgotten(epoch)):
        yield f"I10: the journal: {forgotten}"
    stream = universe.broker.read(job_id=JOB, epoch=epoch)
    yield from log_problems(records, epoch=epoch, committed=universe.store.committed)
    yield from stream_problems(records, stream, epoch=epoch, all_of=not disk.doubtful(epoch))
    attempt = cluster.attempt_of(epoch)
    if attempt is not None and not attempt.agents[0].was_stopped:
        yield from late_end(records)
        if not universe.tally.journal_faults:
            yield from late_decision(records)
    if universe.calm:
        wrong = {"lost", "lost before", "fenced", "killed"} & set(outcomes(records, epoch=epoch))
        if wrong:
            yield f"{', '.join(sorted(wrong))} although nothing went wrong"


# --- budgets ------------------------------------------------------------------------------------


def _budgets(attempt: SimulatedAttempt) -> Iterator[str]:
    """I9: every process is gone by the time that its agent was told, or heard itself."""
    for agent in attempt.agents:
        if agent.was_stopped or agent.killed or agent.process.ended_us is None:
            continue
        name, ended_ms = agent.process.name, agent.process.ended_us // 1_000
        if agent.exit_by_ms is not None:
            limit_ms = agent.exit_by_ms + EXIT_MS
            if agent.told_ms >= agent.exit_by_ms:  # too late: it has a moment to say so
                limit_ms = agent.told_ms + OVERDUE_EXIT_MS + EXIT_MS
            if ended_ms > limit_ms:
                yield (
                    f"I9: agent {name} was told at {agent.told_ms} ms to be gone by "
                    f"{agent.exit_by_ms} ms, and ended at {ended_ms} ms"
                )
        for heard_ms, deadline_ms in agent.heard:
            if ended_ms > max(deadline_ms, heard_ms + OWN_MS):
                yield (
                    f"I9: agent {name} heard at {heard_ms} ms of a deadline at {deadline_ms} ms, "
                    f"and ended at {ended_ms} ms"
                )
        yield from _leftover(agent, ended_ms)


def _leftover(agent: SimulatedAgent, ended_ms: int) -> Iterator[str]:
    for rank in agent.job.ranks if agent.job is not None else ():
        outlived = rank.alive or (rank.ended_us or 0) // 1_000 > ended_ms + 1
        if outlived and not rank.out_of_reach:
            yield f"I9: rank {rank.number} outlived its agent {agent.process.name}"


def _losses(attempt: SimulatedAttempt) -> Iterator[str]:
    """An attempt that lost a node does not go on without it."""
    lost = [a for a in attempt.agents if a.killed and a.listened and a.process.ended_us is not None]
    if not lost or attempt.universe.tally.journal_faults:
        return
    first = min(lost, key=lambda agent: agent.process.ended_us or 0)
    began_ms = (first.process.ended_us or 0) // 1_000
    noticed_ms = began_ms + _silence_ms(first)
    for agent in attempt.agents:
        ended_us = agent.process.ended_us
        if agent.was_stopped or agent.killed or ended_us is None or not agent.listened:
            continue
        limit_ms = noticed_ms + LOST_MS
        since_ms, exit_by_ms = agent.drains_since_ms, agent.exit_by_ms
        if since_ms is not None and exit_by_ms is not None and since_ms <= noticed_ms + 1_000:
            limit_ms = max(limit_ms, exit_by_ms + EXIT_MS)
        if ended_us // 1_000 > limit_ms:
            yield (
                f"I9: node {first.node} was lost at {began_ms} ms, and {agent.process.name} ended "
                f"at {ended_us // 1_000} ms"
            )


def _silence_ms(lost: SimulatedAgent) -> int:
    """Until it is noticed: at once where the kernel closes the connection."""
    faults, world = lost.attempt.universe.tally.faults, lost.attempt.universe.plan.world
    if lost.machine.powered and not faults["silence"] and not faults["stopped"]:
        return 0
    return round((world.silence_s + 2 * world.heartbeat_s) * 1_000)


# --- restarts -----------------------------------------------------------------------------------


def _restores(attempt: SimulatedAttempt) -> Iterator[str]:
    """I8: exactly what the requeue record of the attempt before names, and nothing older than
    what that one restored itself."""
    watcher, state = attempt.agents[0].watcher, attempt.state
    if watcher is None or state is None or not state.attempt.started or not watcher.journaled:
        return
    epoch, restore = state.attempt.epoch, watcher.restore
    try:
        record, before = _record(attempt, epoch - 1), _record(attempt, epoch - 2)
    except ManifestMismatchError as error:
        yield f"I8: {error}"
        return
    if restore != record:
        yield f"I8: epoch {epoch} restores {restore}, recorded is {record}"
    if record and before and record.resume_step < before.resume_step:
        yield f"I8: epoch {epoch} resumes at {record.resume_step}, before {before.resume_step}"
    began = {0: 0 if restore is None else restore.resume_step}
    for agent in attempt.agents:
        for rank in agent.job.ranks if agent.job is not None else ():
            first = rank.first_step
            if first is not None and began.setdefault(rank.restart, first) != first:
                yield f"I8: rank {rank.number} of epoch {epoch} resumed at {first}"
    if sorted(began.values()) != [began[restart] for restart in sorted(began)]:
        yield f"I8: restarted ranks of epoch {epoch} resumed at {began}"


def _record(attempt: SimulatedAttempt, epoch: int) -> RequeueRecord | None:
    name = f"requeue/{epoch:06d}.json"
    data = attempt.universe.store.posix.get(name)
    return None if data is None else decode_object(data, RequeueRecord, what=name)
