"""Marks a run as preempted, where a drain has ended it, in the tracker that recorded its training.

Each function is called once, after the training loop, on every rank that has a run or a writer of
that tracker. Nothing happens unless a drain ended the loop (``session.preempted``). None of them
raises or holds up the exit: what a tracker does not take in ``MARK_S`` is logged and left behind.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drainfsm.session import Session

__all__ = ["mark_mlflow", "mark_tensorboard", "mark_wandb"]

MARK_S = 1.0
"""Of the exit margin, half of which (2.5 s, where nothing is configured) belongs to the ranks."""

KILLED = "KILLED"
"""Of MLflow's states the one for a run that was ended from outside: neither done nor at fault."""

log = logging.getLogger("drainfsm.marking")


def mark_wandb(session: Session, run: Any | None) -> None:
    """Weights & Biases: the run is preempting, and its summary says where the drain ended it.

    Finish it with another exit code than 0, or it counts as finished.
    """
    if run is None or not session.preempted:
        return

    def mark() -> None:
        run.mark_preempting()
        run.summary.update(_marks(session))

    _in_time("Weights & Biases", mark)


def mark_mlflow(session: Session, run: Any | None) -> None:
    """MLflow: the run ends as ``KILLED``, and its tags say where the drain ended it.

    ``run``: what ``mlflow.start_run()`` or ``MlflowClient.create_run()`` returned.
    """
    if run is None or not session.preempted:
        return

    def mark() -> None:
        client = import_module("mlflow").MlflowClient()
        for name, value in _marks(session).items():
            client.set_tag(run.info.run_id, name, value)
        client.set_terminated(run.info.run_id, KILLED)

    if _in_time("MLflow", mark):
        _end_active_run(run)


def _end_active_run(run: Any) -> None:
    """MLflow would end it as ``FINISHED``, when its block or the process ends. It keeps the active
    run for each thread, so this is done here: the same request, by a server that has just
    answered."""
    try:
        mlflow = import_module("mlflow")
        active = mlflow.active_run()
        if active is not None and active.info.run_id == run.info.run_id:
            mlflow.end_run(KILLED)
    except Exception as error:
        log.warning("MLflow: the run may be shown as finished: %r", error)


def mark_tensorboard(session: Session, writer: Any | None) -> None:
    """TensorBoard: a scalar and a text at the last step say that a drain ended the run.

    ``writer``: a ``SummaryWriter`` that is still open.
    """
    if writer is None or not session.preempted:
        return

    def mark() -> None:
        told = ", ".join(f"{name} {value}" for name, value in _marks(session).items())
        writer.add_scalar("drainfsm/preempted_epoch", session.epoch, session.last_step)
        writer.add_text("drainfsm/preempted", told, session.last_step)
        writer.flush()

    _in_time("TensorBoard", mark)


def _marks(session: Session) -> dict[str, str | int]:
    """True for ever, also once a replacement has resumed the run and finished it."""
    return {
        "drainfsm/job": session.job_id,
        "drainfsm/preempted_epoch": session.epoch,
        "drainfsm/preempted_step": session.last_step,
    }


def _in_time(tracker: str, mark: Callable[[], None]) -> bool:
    """Whether the tracker took the mark. A thread that hangs does not hold up the process."""
    taken = threading.Event()

    def attempt() -> None:
        try:
            mark()
        except Exception as error:
            log.warning("%s: the run is not marked as preempted: %r", tracker, error)
        else:
            taken.set()

    try:
        thread = threading.Thread(target=attempt, name="drainfsm-marking", daemon=True)
        thread.start()
        thread.join(MARK_S)
    except RuntimeError as error:  # no thread can be started
        log.warning("%s: the run is not marked as preempted: %s", tracker, error)
        return False
    if thread.is_alive():
        log.warning("%s has not taken the mark of a preempted run in %s s", tracker, MARK_S)
    return taken.is_set()
