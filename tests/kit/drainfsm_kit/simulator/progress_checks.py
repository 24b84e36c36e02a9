"""What must have happened where nothing went wrong: a job gets on, and a save that fits is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drainfsm.core import events as e
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.core.records import Record
from drainfsm_kit.simulator.attempt import SimulatedAttempt
from drainfsm_kit.simulator.cluster import Cluster

LATE_RANKS = (
    "did not stop in time",
    "cannot quiesce within",
    "attach",
    "had ended",
    "ended by themselves",
)
"""Why a save that would fit is not tried: ranks that are elsewhere, as they may be."""


def unmade_progress(cluster: Cluster) -> Iterator[str]:
    """Of a simulation in which nothing went wrong but notices."""
    for disk in cluster.universe.disks:
        for epoch in disk.epochs:
            yield from (f"epoch {epoch}: {wrong}" for wrong in no_progress(disk.records(epoch)))
    if cluster.done:
        yield from _undone(cluster.attempts[-1])


def no_progress(records: Iterator[Record] | Sequence[Record]) -> Iterator[str]:
    """In the log of one attempt."""
    called_off = False
    for record in records:
        for event in record.events:
            match event:
                case e.DrainCancelled():
                    called_off = True
                case e.NoticeReceived():
                    called_off = False
                case e.AttemptFinished(exit_code=code) if code != 0:
                    since = " since its drain was called off" if called_off else ""
                    yield f"the job does not train on to its end{since}: exit code {code}"
                case e.Exited(exit_code=code) if code not in (0, EX_TEMPFAIL):
                    yield f"a drained job ends with exit code {code}"
                case e.SaveSkipped(budget=budget, reason=reason) if budget.fits:
                    if not any(why in reason for why in LATE_RANKS):
                        yield f"a save that fits is not made: {reason}"
                case e.SaveAbandoned(budget=budget, reason=reason) if budget.fits:
                    yield f"a save that still fits is given up: {reason}"
                case _:
                    pass


def _undone(attempt: SimulatedAttempt) -> Iterator[str]:
    """The job has finished, and so has every rank."""
    last = attempt.universe.plan.world.step_count - 1
    for agent in attempt.agents:
        for rank in agent.job.ranks if agent.job is not None else ():
            if rank.step < last:
                yield f"the job has finished, and rank {rank.number} stands at {rank.step}"
