"""A run that a drain has ended is marked as preempted in W&B, MLflow and TensorBoard: read back
from what they wrote. And no tracker can fail or hold up a rank that leaves."""

from __future__ import annotations

import logging
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pytest

from drainfsm import marking
from drainfsm.marking import mark_mlflow, mark_tensorboard, mark_wandb
from drainfsm_kit.preempted import LAST_STEP, MARKS, session_after_its_loop

Mark = Callable[[Any, Any], None]

every_tracker = pytest.mark.parametrize("mark", [mark_wandb, mark_mlflow, mark_tensorboard])

SCRIPT = """
from drainfsm.marking import *
from drainfsm_kit.preempted import session_after_its_loop
session = session_after_its_loop(preempted={preempted})
"""


def run_script(code: str, folder: Path, *, preempted: bool) -> str:
    """In a process of its own, to its end: the trackers act there too."""
    quiet = {"WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(preempted=preempted) + code],
        cwd=folder,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "drainfsm" not in done.stderr, "nothing to warn of"
    return done.stdout


# --- the real trackers --------------------------------------------------------------------------


def needs(tracker: str) -> None:
    """``dev`` installs them: they may be missing on a machine at hand, never in CI."""
    if os.environ.get("CI") != "true":
        pytest.importorskip(tracker, reason=f"{tracker} is not installed")


WANDB = """
import wandb
run = wandb.init(mode="offline", project="p")
run.log({"loss": 1.0})
mark_wandb(session, run)
run.finish(exit_code=75 if session.preempted else 0)
"""


@pytest.mark.parametrize("preempted", [True, False])
def test_wandb_is_told_that_the_run_is_preempting(preempted: bool, tmp_path: Path) -> None:
    needs("wandb")
    run_script(WANDB, tmp_path, preempted=preempted)
    (log,) = tmp_path.rglob("run-*.wandb")
    records = _wandb_records(log)
    kinds = [record.WhichOneof("record_type") for record in records]
    assert ("preempting" in kinds) is preempted
    (end,) = [record.exit for record in records if record.WhichOneof("record_type") == "exit"]
    assert end.exit_code == (75 if preempted else 0)
    summary = {
        item.key or "/".join(item.nested_key): item.value_json
        for record in records
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
    }
    ours = {key: value.strip('"') for key, value in summary.items() if key in MARKS}
    assert ours == ({key: str(value) for key, value in MARKS.items()} if preempted else {})


def _wandb_records(log: Path) -> list[Any]:
    """W&B's transaction log: 7 bytes of head, then LevelDB's log format in blocks of 32 KiB."""
    kind = import_module("wandb.proto.wandb_internal_pb2").Record
    data, at, found, part = log.read_bytes(), 7, [], b""
    while at < len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        _, size, place = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if place in (1, 4):  # whole, or the last part
            found.append(kind.FromString(part))
            part = b""
    return found


MLFLOW = """
import mlflow
mlflow.set_tracking_uri("mlruns")
with mlflow.start_run() as run:
    mark_mlflow(session, run)
other = mlflow.MlflowClient().create_run("0")
mark_mlflow(session, other)
last = mlflow.start_run()  # ended by MLflow, when the process ends
mark_mlflow(session, last)
print(run.info.run_id, other.info.run_id, last.info.run_id)
"""


@pytest.mark.parametrize("preempted", [True, False])
def test_mlflow_shows_the_run_as_killed_and_where(preempted: bool, tmp_path: Path) -> None:
    needs("mlflow")
    ids = run_script(MLFLOW, tmp_path, preempted=preempted).split()
    after = "import mlflow; mlflow.set_tracking_uri('mlruns')\nfor run in map(mlflow.get_run, "
    after += f"{ids}): print(run.info.status, *(f'{{k}}={{v}}' for k, v in run.data.tags.items()))"
    told = run_script(after, tmp_path, preempted=False).splitlines()
    assert [line.split()[0] for line in told] == (
        ["KILLED"] * 3 if preempted else ["FINISHED", "RUNNING", "FINISHED"]
    )
    for line in told:
        tags = set(line.split()[1:])
        marks = {f"{name}={value}" for name, value in MARKS.items()}
        assert tags & marks == (marks if preempted else set())


TENSORBOARD = """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("events")
mark_tensorboard(session, writer)
writer.close()
"""


@pytest.mark.parametrize("preempted", [True, False])
def test_tensorboard_shows_the_step(preempted: bool, tmp_path: Path) -> None:
    needs("tensorboard")
    run_script(TENSORBOARD, tmp_path, preempted=preempted)
    told = run_script(
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator('events').Reload()\n"
        "for tag in events.Tags()['scalars']:\n"
        "    print(tag, *((e.step, e.value) for e in events.Scalars(tag)))\n"
        "for tag in events.Tags()['tensors']:\n"
        "    print(tag, *(e.tensor_proto.string_val[0].decode() for e in events.Tensors(tag)))\n",
        tmp_path,
        preempted=False,
    )
    text = ", ".join(f"{name} {value}" for name, value in MARKS.items())
    wanted = [
        f"drainfsm/preempted_epoch ({LAST_STEP}, 2.0)",
        f"drainfsm/preempted/text_summary {text}",
    ]
    assert told.splitlines() == (wanted if preempted else [])


# --- trackers that fail -------------------------------------------------------------------------


class Hostile:
    """A run and a writer whose every use does the same."""

    def __init__(self, does: Callable[[], object]) -> None:
        self._does = does

    def __getattr__(self, name: str) -> object:
        return self._does()


def _refuse() -> object:
    raise OSError("no room")


@every_tracker
def test_a_tracker_that_fails_is_logged(
    mark: Mark, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", Hostile(_refuse))
    session = session_after_its_loop()
    with caplog.at_level(logging.WARNING, "drainfsm.marking"):
        mark(session, Hostile(_refuse))
    (record,) = caplog.records
    assert "is not marked as preempted" in record.message


def test_an_mlflow_that_fails_at_the_end_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the mark, and then not the end of the active run."""
    run = Namespace(info=Namespace(run_id="r"))
    client = Namespace(set_tag=lambda *given: None, set_terminated=lambda *given: None)
    mlflow: Any = Namespace(
        MlflowClient=lambda: client, active_run=lambda: run, end_run=lambda status: _refuse()
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    with caplog.at_level(logging.WARNING, "drainfsm.marking"):
        mark_mlflow(session_after_its_loop(), run)
    (record,) = caplog.records
    assert "may be shown as finished: OSError('no room')" in record.message


@every_tracker
def test_a_tracker_that_hangs_holds_up_nobody(
    mark: Mark, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marking, "MARK_S", 0.01)
    released = threading.Event()
    client = Hostile(released.wait)
    monkeypatch.setitem(sys.modules, "mlflow", client)
    session = session_after_its_loop()
    try:
        with caplog.at_level(logging.WARNING, "drainfsm.marking"):
            mark(session, client)  # comes back, though nothing was released
        assert "has not taken the mark" in caplog.text
    finally:
        released.set()
        for thread in threading.enumerate():
            if thread.name == "drainfsm-marking":
                thread.join()


@every_tracker
def test_a_loop_that_ended_by_itself_and_a_rank_without_a_run_are_left_alone(mark: Mark) -> None:
    touched: list[bool] = []
    mark(session_after_its_loop(preempted=False), Hostile(lambda: touched.append(True)))
    mark(session_after_its_loop(), None)
    assert touched == []


def test_a_session_without_an_agent_is_never_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    import drainfsm

    monkeypatch.delenv("DRAINFSM_SOCKET", raising=False)
    session = drainfsm.attach()
    assert session.last_step == -1
    assert not session.step_done(0)
    assert (session.preempted, session.last_step) == (False, 0)
