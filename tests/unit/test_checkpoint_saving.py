"""One rank, no torch.distributed: what a checkpoint saves, when, and what it reports."""

from __future__ import annotations

import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from torch import nn

from drainfsm.checkpoint import Checkpoint
from drainfsm.checkpoint.cadence import AGREE_AT, Cadence
from drainfsm.checkpoint.exchange import Exchange
from drainfsm.checkpoint.saving import RankSave
from drainfsm.checkpoint.writer import GenerationWriter
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm.core.state import generation_id
from drainfsm.errors import ConfigError, SaveFailedError
from drainfsm.store import PosixStore
from drainfsm.testing.stores import new_store
from drainfsm_kit.ranks import RecordedPort, commit_saved

STEPS = 12
WAIT_S_MAX = 60


def periodic(step: int) -> str:
    return generation_id(epoch=1, step=step, saver="p")


class Job:
    """A small model with everything that has state."""

    def __init__(self, make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW):
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 4)
        )
        self.optimizer = make_optimizer(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3)
        self.noise = torch.Generator().manual_seed(5)
        torch.manual_seed(1)
        random.seed(1)

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "parts": {"noise": self.noise},
        }

    def step(self) -> tuple[str, float]:
        rows = torch.randn(8, 16, generator=self.noise)
        loss = self.model(rows).square().mean() * (1 + random.random())
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.item().hex(), float(self.optimizer.param_groups[0]["lr"])

    def train(self, first: int, checkpoint: Checkpoint | None = None) -> list[tuple[str, float]]:
        seen = []
        for step in range(first, STEPS):
            seen.append(self.step())
            if checkpoint is not None and checkpoint.step_done(step):
                break
        return seen


def port_in(tmp_path: Path, **options: Any) -> RecordedPort:
    settings = CheckpointSettings(**options.pop("settings", {}))
    return RecordedPort(tmp_path, store_url=str(tmp_path / "store"), settings=settings, **options)


def commit(tmp_path: Path, generation: str, step: int) -> RestoreTarget:
    store = new_store(tmp_path / "store")
    return commit_saved(store, tmp_path, generation=generation, step=step, world_size=1)


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def capturable_rate(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=torch.tensor(lr))


@pytest.mark.parametrize(
    "make_optimizer", [torch.optim.AdamW, torch.optim.Adagrad, sgd, capturable_rate]
)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_resumed_job_goes_on_bit_for_bit(
    tmp_path: Path, make_optimizer: Callable[..., torch.optim.Optimizer], *, asynchronous: bool
) -> None:
    whole = Job(make_optimizer).train(0)
    job = Job(make_optimizer)
    port = port_in(tmp_path, settings={"every_steps": 5, "asynchronous": asynchronous}, drain_at=7)
    checkpoint = Checkpoint(port, **job.parts())
    assert checkpoint.restore() == 0
    assert job.train(0, checkpoint) == whole[:8]
    checkpoint.close()
    for step, generation in ((4, periodic(4)), (7, generation_id(epoch=1, step=7, saver="d1"))):
        target = commit(tmp_path, generation, step)
        again = Job(make_optimizer)
        torch.randn(3)  # a fresh process has drawn other numbers by now
        resumed = Checkpoint(port_in(tmp_path, restore_target=target), **again.parts())
        assert resumed.restore() == step + 1
        assert again.train(step + 1) == whole[step + 1 :]


def test_no_thread_is_left_that_could_hold_the_last_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the exit of the interpreter it would abort the process."""
    run = RankSave._run

    def lingers(save: RankSave) -> None:
        run(save)
        time.sleep(0.5)

    monkeypatch.setattr(RankSave, "_run", lingers)
    job = Job(torch.optim.AdamW)
    checkpoint = Checkpoint(port_in(tmp_path, settings={"every_steps": 5}), **job.parts())
    job.train(0, checkpoint)
    checkpoint.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("drainfsm-save")]


def test_training_may_change_the_state_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    job = Job()
    checkpoint = Checkpoint(port_in(tmp_path, settings={"every_steps": 3}), **job.parts())
    for step in range(3):
        job.step()
        checkpoint.step_done(step)
    gate.reached.wait(WAIT_S_MAX)
    saved = {name: value.clone() for name, value in job.model.state_dict().items()}
    job.step()
    assert not torch.equal(saved["0.weight"], job.model.state_dict()["0.weight"])
    gate.open.set()
    checkpoint.close()
    target = commit(tmp_path, periodic(2), 2)
    again = Job()
    Checkpoint(port_in(tmp_path, restore_target=target), **again.parts()).restore()
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, saved[name]), name


class Gate:
    """Holds every writer of the store until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.count = 0
        writer = PosixStore.writer

        @contextmanager
        def gated(store: PosixStore, name: str, *, size_bytes: int = 0) -> Iterator[BinaryIO]:
            self.count += 1
            self.reached.set()
            assert self.open.wait(WAIT_S_MAX)
            with writer(store, name) as stream:
                yield stream

        monkeypatch.setattr(PosixStore, "writer", gated)


def test_one_save_at_a_time_the_next_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    job = Job()
    port = port_in(tmp_path, settings={"every_steps": 1})
    checkpoint = Checkpoint(port, **job.parts())
    checkpoint.step_done(0)
    assert gate.reached.wait(WAIT_S_MAX)
    second = threading.Thread(target=checkpoint.step_done, args=(1,))
    second.start()
    second.join(0.3)
    assert second.is_alive(), "the second save waits"
    assert port.of("durable") == []
    gate.open.set()
    second.join(WAIT_S_MAX)
    checkpoint.close()
    order = [(r.kind, r.generation_id) for r in port.reports if r.kind in ("staged", "durable")]
    assert order == [
        ("staged", periodic(0)),
        ("durable", periodic(0)),
        ("staged", periodic(1)),
        ("durable", periodic(1)),
    ]


def test_a_save_that_is_given_up_stops_and_is_never_reported_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    job = Job()
    port = port_in(tmp_path, drain_at=0)
    checkpoint = Checkpoint(port, **job.parts())
    drain = threading.Thread(target=checkpoint.step_done, args=(0,))
    drain.start()
    assert gate.reached.wait(WAIT_S_MAX)
    port.aborted.add(generation_id(epoch=1, step=0, saver="d1"))
    drain.join(WAIT_S_MAX)
    assert not drain.is_alive(), "the main thread does not wait for a store that hangs"
    gate.open.set()
    checkpoint.close()
    assert port.of("durable") == []
    assert [report.reason for report in port.of("failed")] == ["the save was given up"]


def test_a_save_that_was_given_up_before_it_began_writes_nothing(tmp_path: Path) -> None:
    port = port_in(tmp_path, drain_at=0)
    port.aborted.add(generation_id(epoch=1, step=0, saver="d1"))
    checkpoint = Checkpoint(port, **Job().parts())
    checkpoint.step_done(0)
    checkpoint.close()
    assert (port.of("staged"), port.of("durable")) == ([], [])
    assert [report.reason for report in port.of("failed")] == ["rank 0: the save was given up"]
    assert not list((tmp_path / "store").glob("generations/*"))


def test_a_save_that_is_given_up_when_all_is_written_is_not_reported_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = port_in(tmp_path, drain_at=0)
    write_metadata = GenerationWriter.write_metadata

    def finished(writer: GenerationWriter, *given: Any) -> None:
        write_metadata(writer, *given)
        port.aborted.add(generation_id(epoch=1, step=0, saver="d1"))

    monkeypatch.setattr(GenerationWriter, "write_metadata", finished)
    checkpoint = Checkpoint(port, **Job().parts())
    checkpoint.step_done(0)
    checkpoint.close()
    assert port.of("durable") == []
    assert [report.reason for report in port.of("failed")] == ["the save was given up"]


def test_a_full_disk_is_reported_and_the_next_save_is_whole(tmp_path: Path) -> None:
    job = Job()
    port = port_in(tmp_path, settings={"every_steps": 1})
    checkpoint = Checkpoint(port, **job.parts())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, hard))
    try:
        job.step()
        assert checkpoint.step_done(0) is False
        checkpoint.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    [failed] = port.of("failed")
    assert failed.generation_id == periodic(0)
    assert "File too large" in failed.reason
    job.step()
    checkpoint.step_done(1)
    checkpoint.close()
    commit(tmp_path, periodic(1), 1)


@pytest.mark.parametrize("failing", ["__0_0_0.distcp", "__0_1_0.distcp", ".metadata"])
def test_an_error_in_any_thread_fails_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """torch's own writer loses the exceptions of all threads but one."""
    writer = PosixStore.writer

    @contextmanager
    def fail(store: PosixStore, name: str, *, size_bytes: int = 0) -> Iterator[BinaryIO]:
        with writer(store, name) as stream:
            if name.endswith(failing):
                raise OSError(28, "No space left on device")
            yield stream

    monkeypatch.setattr(PosixStore, "writer", fail)
    port = port_in(tmp_path, settings={"every_steps": 1})
    checkpoint = Checkpoint(port, **Job().parts())
    checkpoint.step_done(0)
    checkpoint.close()
    assert port.of("durable") == []
    [failed] = port.of("failed")
    assert "No space left on device" in failed.reason


def test_a_directory_is_written_by_one_save_only(tmp_path: Path) -> None:
    """So the torn overwrite cannot happen that torch's own writer allows."""
    job = Job()
    first = Checkpoint(port_in(tmp_path, settings={"every_steps": 1}), **job.parts())
    job.step()
    first.step_done(0)
    first.close()
    target = commit(tmp_path, periodic(0), 0)
    weight = job.model.state_dict()["0.weight"].clone()
    job.step()
    again = port_in(tmp_path, settings={"every_steps": 1})
    second = Checkpoint(again, **job.parts())
    second.step_done(0)
    second.close()
    [failed] = again.of("failed")
    assert "used once" in failed.reason
    fresh = Job()
    port = port_in(tmp_path, settings={"verify": "checksums"}, restore_target=target)
    Checkpoint(port, **fresh.parts()).restore()
    assert torch.equal(fresh.model.state_dict()["0.weight"], weight)


def test_a_part_whose_state_cannot_be_had_fails_the_save_not_the_training(tmp_path: Path) -> None:
    class Broken:
        def state_dict(self) -> dict[str, Any]:
            raise ValueError("workers are gone")

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    port = port_in(tmp_path, settings={"every_steps": 1})
    checkpoint = Checkpoint(port, **Job().parts(), loader=Broken())
    assert checkpoint.step_done(0) is False
    checkpoint.close()
    [failed] = port.of("failed")
    assert "ValueError: workers are gone" in failed.reason


def test_a_drain_that_names_another_step_is_refused(tmp_path: Path) -> None:
    port = port_in(tmp_path)
    checkpoint = Checkpoint(port, **Job().parts())
    checkpoint.step_done(3)
    port.drain_at = 9
    port.step_done(9)
    assert [report.reason for report in port.of("failed")] == ["rank 0 is at step 3, not 9"]


def test_in_a_drain_nothing_is_copied_and_the_size_is_known(tmp_path: Path) -> None:
    job = Job()
    job.step()
    port = port_in(tmp_path, drain_at=0)
    checkpoint = Checkpoint(port, **job.parts())
    assert checkpoint.step_done(0) is True
    [staged], [durable] = port.of("staged"), port.of("durable")
    tensors = [*job.model.state_dict().values()]
    tensors += [v for state in job.optimizer.state.values() for v in state.values()]
    tensor_bytes = sum(t.numel() * t.element_size() for t in tensors)
    assert staged.size_bytes >= tensor_bytes
    assert checkpoint._staging._buffers == {}
    written = sum(entry.size_bytes for entry in durable.entries)
    declared = [report.size_bytes for report in port.of("size")]
    assert declared[-1] == written
    assert declared[0] == pytest.approx(tensor_bytes, rel=0.1)


def test_without_an_agent_nothing_is_saved_and_training_goes_on(tmp_path: Path) -> None:
    settings = CheckpointSettings(every_steps=1)
    port = RecordedPort(tmp_path, store_url="", settings=settings)
    checkpoint = Checkpoint(port, **Job().parts())
    assert checkpoint.restore() == 0
    assert [checkpoint.step_done(step) for step in range(3)] == [False] * 3
    checkpoint.close()
    assert port.reports == []


def test_what_cannot_be_saved_is_refused_at_once(tmp_path: Path) -> None:
    job = Job()
    with pytest.raises(ConfigError, match=r"'loader0' \(list_iterator\) has no state_dict\(\)"):
        Checkpoint(port_in(tmp_path), **job.parts(), loader=[iter([])])
    with pytest.raises(ConfigError, match="'md5': choose xxh3_128, sha256 or sha256_tree"):
        Checkpoint(port_in(tmp_path, settings={"checksum": "md5"}), **job.parts())
    with pytest.raises(ConfigError, match=r"call torch\.distributed\.init_process_group"):
        Checkpoint(port_in(tmp_path, world_size=2), **job.parts())


def test_saves_are_due_at_the_same_steps_wherever_an_attempt_began() -> None:
    cadence = Cadence(every_steps=4, every_s=0)
    assert [step for step in range(12) if cadence.due(step)] == [3, 7, 11]
    assert not Cadence(every_steps=0, every_s=0).due(0)


def test_a_cadence_by_time_is_turned_into_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    cadence = Cadence(every_steps=0, every_s=10)
    exchange = Exchange(rank=0, world_size=1)
    due = []
    for step in range(60):
        now[0] += 0.5 if step < 30 else 2.0  # training slows down
        must_agree = cadence.passed(step)
        assert must_agree == (step == AGREE_AT - 1)
        if cadence.due(step):
            due.append(step)
            cadence.agree(step, exchange)
        elif must_agree:
            cadence.agree(step, exchange)
    assert due[0] == AGREE_AT - 1 + 20, "10 s at 0.5 s a step"
    assert due[-1] - due[-2] in (5, 6), "10 s at 2 s a step"


def test_a_group_that_was_destroyed_before_the_last_save_is_named() -> None:
    """``destroy_process_group()`` in a script, and ``session.close()`` after it."""
    exchange = Exchange(rank=0, world_size=1)
    exchange._group = "of a world that is gone"
    with pytest.raises(SaveFailedError, match=r"session.close\(\) before destroy_process_group"):
        exchange.share(lambda: 1)
    with pytest.raises(SaveFailedError, match="can no longer agree"):
        exchange.share(lambda: 1)
