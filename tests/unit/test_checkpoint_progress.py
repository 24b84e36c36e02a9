"""A loop goes on behind its checkpoint, and what it trained last is saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from drainfsm.checkpoint import Checkpoint, OwnCheckpoint
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.state import periodic_id
from drainfsm.errors import NotRestoredError
from drainfsm.testing.stores import new_store
from drainfsm_kit.ranks import RecordedPort, commit_saved

Loop = Checkpoint | OwnCheckpoint
Make = Callable[[RecordedPort], Loop]


def ours(port: RecordedPort) -> Checkpoint:
    return Checkpoint(port, model=nn.Linear(2, 2))


def own(port: RecordedPort) -> OwnCheckpoint:
    def save(directory: Path, step: int) -> None:
        (directory / "step.json").write_text(json.dumps(step))

    return OwnCheckpoint(port, save=save, load=lambda directory, step: None)


@pytest.fixture(params=[ours, own])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def saved_steps(port: RecordedPort) -> list[int]:
    return [report.step for report in port.reports if report.kind == "began"]


class Job:
    """One rank that has committed step 9."""

    def __init__(self, directory: Path, make: Make) -> None:
        self._directory = directory
        store = new_store(directory / "store")
        self._url = store.url
        port = self.port(every_steps=10)
        loop = make(port)
        for step in range(10):
            loop.step_done(step)
        port.close()
        generation = periodic_id(epoch=1, step=9, restart=0)
        self._target = commit_saved(store, directory, generation=generation, step=9, world_size=1)

    def port(self, *, epoch: int = 1, **settings: object) -> RecordedPort:
        restore = None if epoch == 1 else self._target
        return RecordedPort(
            self._directory,
            store_url=self._url,
            settings=CheckpointSettings(**settings),  # type: ignore[arg-type]
            restore_target=restore,
            epoch=epoch,
        )


@pytest.fixture
def job(tmp_path: Path, make: Make) -> Job:
    return Job(tmp_path, make)


def test_a_step_before_restore_is_refused(job: Job, make: Make) -> None:
    loop = make(job.port(epoch=2))
    for step in (0, 10):
        with pytest.raises(NotRestoredError, match=r"step 9 is committed .*was not called"):
            loop.step_done(step)


def test_a_step_that_was_restored_is_not_done_again(job: Job, make: Make) -> None:
    loop = make(job.port(epoch=2))
    assert loop.restore() == 10
    for step in (0, 9):
        with pytest.raises(NotRestoredError, match=r"done again, though step 9 was restored.* 10"):
            loop.step_done(step)
    assert not loop.step_done(10)


def test_who_means_it_may_go_back(job: Job, make: Make) -> None:
    port = job.port(epoch=2, rewind=True)
    loop = make(port)
    assert not loop.step_done(0)
    assert loop.restore() == 10
    assert not loop.step_done(3)
    port.close()
    assert saved_steps(port) == [3]


def test_a_fresh_job_need_not_call_restore(job: Job, make: Make) -> None:
    port = job.port()
    assert not make(port).step_done(0)
    assert not [report for report in port.reports if report.kind == "failed"]


def test_the_last_step_of_a_loop_that_ended_by_itself_is_saved(job: Job, make: Make) -> None:
    port = job.port(epoch=2, every_steps=10)
    loop = make(port)
    for step in range(loop.restore(), 23):
        loop.step_done(step)
    assert saved_steps(port) == [19]
    port.close()
    assert saved_steps(port) == [19, 22]
    assert [r.generation_id for r in port.reports if r.kind == "durable"][-1].endswith("22-p")


def test_what_is_saved_already_is_not_saved_again(job: Job, make: Make) -> None:
    for epoch, steps in ((2, 20), (3, 10)):  # the second trains nothing
        port = job.port(epoch=epoch, every_steps=10)
        loop = make(port)
        for step in range(loop.restore(), steps):
            loop.step_done(step)
        port.close()
        assert saved_steps(port) == ([19] if epoch == 2 else [])


def test_a_loop_that_was_told_to_leave_saves_no_more(job: Job, make: Make) -> None:
    port = job.port(epoch=2)
    loop = make(port)
    port.drain_at = 12
    for step in range(loop.restore(), 20):
        if loop.step_done(step):
            break
    port.close()
    assert saved_steps(port) == []


def test_an_error_saves_nothing(job: Job, make: Make) -> None:
    """``session.close()`` in a ``finally:`` is called while the other ranks may hang."""
    port = job.port(epoch=2)
    loop = make(port)

    def train() -> None:
        try:
            loop.step_done(loop.restore())
            raise ZeroDivisionError
        finally:
            port.close()

    with pytest.raises(ZeroDivisionError):
        train()
    assert saved_steps(port) == []


def test_who_wants_no_final_save_is_told_what_that_means(
    job: Job, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    port = job.port(epoch=2, final=False)
    loop = make(port)
    loop.step_done(loop.restore())
    port.close()
    assert saved_steps(port) == []
    assert "the last step, 10, is not saved" in caplog.text


class Loader:
    """As torchdata's: it keeps the iterator that its workers belong to."""

    def __init__(self) -> None:
        self._iterator: object | None = object()

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_data_loaders_end_their_workers_when_the_job_was_told_to_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the exit of the interpreter, where torch takes them for killed."""
    for told in (False, True):
        port = RecordedPort(tmp_path, store_url=new_store(tmp_path / str(told)).url)
        loader = Loader()
        loop = Checkpoint(port, model=nn.Linear(2, 2), loader=loader)
        monkeypatch.setattr(port, "step_done", lambda step, told=told: told)
        assert loop.step_done(0) is told
        port.close()
        assert (loader._iterator is None) is told
