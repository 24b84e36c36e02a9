"""Every kind of damage is refused in its own words, and what happens then is configured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from torch import nn

from drainfsm.checkpoint import Checkpoint, OwnCheckpoint
from drainfsm.core import events as e
from drainfsm.core.fold import evolve
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm.core.requeue import RefusedGeneration, RequeueRecord
from drainfsm.core.state import Attempt, Committed, State, generation_id
from drainfsm.core.words import OnRefused, Verification
from drainfsm.errors import (
    DrainfsmError,
    FormatUnknownError,
    ManifestMismatchError,
    RestoreRefusedError,
)
from drainfsm.store import CommitLog
from drainfsm.store.requeues import restore_for
from drainfsm.testing.stores import new_store
from drainfsm_kit.ranks import JOB, RecordedPort, commit_saved

OLDER = generation_id(epoch=1, step=2, saver="p")
NEWER = generation_id(epoch=1, step=4, saver="d1")


class History:
    """A job that committed two generations; the newer one is recorded."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.store = new_store(tmp_path / "store")
        model = self.model()
        port = self.port(drain_at=4, settings={"every_steps": 3, "asynchronous": False})
        checkpoint = Checkpoint(port, model=model)
        for step in range(5):
            nn.init.constant_(model.weight, step)
            checkpoint.step_done(step)
        self.older = self.commit(OLDER, 2)
        self.newer = self.commit(NEWER, 4)
        self.last_port = port
        """The one of the newest restore."""

    def model(self) -> nn.Linear:
        return nn.Linear(16, 16)

    def commit(self, generation: str, step: int) -> RestoreTarget:
        return commit_saved(self.store, self.path, generation=generation, step=step, world_size=1)

    def port(self, **options: Any) -> RecordedPort:
        settings = CheckpointSettings(**options.pop("settings", {}))
        url = str(self.path / "store")
        return RecordedPort(self.path, store_url=url, settings=settings, **options)

    def file(self, name: str, generation: str = NEWER) -> Path:
        return self.path / "store" / "generations" / generation / name

    def restore(
        self, *, target: RestoreTarget | None = None, **settings: Any
    ) -> tuple[float, Sequence[RefusedGeneration]]:
        """The weight that comes back, and what was refused before it did."""
        model = self.model()
        self.last_port = port = self.port(restore_target=target or self.newer, settings=settings)
        first = Checkpoint(port, model=model).restore()
        (restored,) = port.of("restored")
        assert first == restored.step + 1
        assert torch.equal(model.weight, torch.full((16, 16), model.weight[0, 0].item()))
        return model.weight[0, 0].item(), restored.refused


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def newer_format(history: History) -> RestoreTarget:
    path = history.file("manifest.json")
    said = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(said | {"format_version": 99}))
    digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    return msgspec.structs.replace(history.newer, manifest_digest=digest)


class Case(NamedTuple):
    name: str
    damage: Callable[[History], object]
    """May return another target than the recorded one."""

    error: type[DrainfsmError]
    says: str
    falls_back: bool = True
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed


DATA = "__0_0_0.distcp"
CASES = [
    Case("flipped bit", lambda h: flip(h.file(DATA)), ManifestMismatchError, "has checksum",
         settings={"verify": "checksums"}),
    Case("flipped bit in .metadata", lambda h: flip(h.file(".metadata")), ManifestMismatchError,
         r"\.metadata is not what the manifest says"),
    Case("truncated", lambda h: truncate(h.file(DATA)), ManifestMismatchError, "bytes, not"),
    Case("missing", lambda h: h.file(DATA).unlink(), ManifestMismatchError, "is missing"),
    Case("extra", lambda h: h.file("__9_0_0.distcp").write_bytes(b"x"), ManifestMismatchError,
         r"unexpected file\(s\) __9"),
    Case("no manifest", lambda h: h.file("manifest.json").unlink(), ManifestMismatchError,
         r"manifest\.json is missing"),
    Case("changed manifest", lambda h: flip(h.file("manifest.json")), ManifestMismatchError,
         "it was changed"),
    Case("unreadable", lambda h: (h.file(DATA).write_bytes(bytes(h.file(DATA).stat().st_size))),
         ManifestMismatchError, "cannot be read"),
    # What is not damaged is not given up for something older:
    Case("format", newer_format, FormatUnknownError, "format version 99.*update it",
         falls_back=False),
    Case("world size", lambda h: msgspec.structs.replace(h.newer, world_size=2),
         RestoreRefusedError, "saved by 2 ranks, and this job has 1.*reshard", falls_back=False),
    Case("layout", lambda h: None, RestoreRefusedError, "saved with layout .*reshard",
         falls_back=False, settings={"layout": {"dp": 1}}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_refused_is_said_and_falls_back_only_if_asked_and_damaged(
    tmp_path: Path, case: Case
) -> None:
    history = History(tmp_path)
    assert history.restore(**case.settings | {"layout": {}}) == (4.0, ())
    damaged = case.damage(history)
    target = damaged if isinstance(damaged, RestoreTarget) else None
    with pytest.raises(case.error, match=case.says) as refused:
        history.restore(target=target, **case.settings)
    assert type(refused.value) is case.error
    (told,) = history.last_port.of("refused")
    assert (told.generation_id, told.step) == (NEWER, 4)
    assert told.reason == f"{case.error.__name__}: {refused.value}"
    if not case.falls_back:
        with pytest.raises(case.error, match=case.says):
            history.restore(target=target, on_refused="fallback", **case.settings)
        return
    weight, gone = history.restore(on_refused="fallback", **case.settings)
    assert weight == 2.0
    assert [one.generation_id for one in gone] == [NEWER]
    assert gone[0].reason == str(refused.value)


def test_where_nothing_older_is_whole_everything_that_was_tried_is_named(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.file(DATA).unlink()
    truncate(history.file(DATA, OLDER))
    with pytest.raises(RestoreRefusedError, match=rf"{NEWER}: .*missing; {OLDER}: .*bytes, not"):
        history.restore(on_refused="fallback")
    (told,) = history.last_port.of("refused")
    assert told.generation_id == NEWER, "what was recorded"


def test_a_lost_attempt_whose_last_manifest_is_damaged_does_not_keep_others_from_falling_back(
    tmp_path: Path,
) -> None:
    """Its record is derived from the newest commit, whose layout only the manifest knows."""
    history = History(tmp_path)
    history.file("manifest.json").unlink()
    log = CommitLog(history.store, job_id=JOB)
    claimed = log.claim(attempt_id="next", now_unix_ms=1)

    def record(damaged_layout: dict[str, int] | None) -> RequeueRecord | None:
        return restore_for(
            history.store,
            log,
            claimed,
            now_unix_ms=1,
            node_count=1,
            damaged_layout=damaged_layout,
        )

    with pytest.raises(ManifestMismatchError, match=r"manifest\.json is missing"):
        record(None)
    found = record({})
    assert found is not None
    assert (found.generation_id, found.layout) == (NEWER, {})
    assert history.restore(on_refused="fallback")[0] == 2.0


def test_an_own_saver_falls_back_too(tmp_path: Path) -> None:
    seen: list[str] = []

    def save(directory: Path, step: int) -> None:
        (directory / "step").write_text(f"{step:9}")

    def load(directory: Path, step: int) -> None:
        seen.append((directory / "step").read_text())

    def port(**options: Any) -> RecordedPort:
        settings = CheckpointSettings(
            every_steps=3,
            asynchronous=False,
            verify=Verification.CHECKSUMS,
            on_refused=OnRefused.FALLBACK,
        )
        url = str(tmp_path / "store")
        return RecordedPort(tmp_path, store_url=url, settings=settings, **options)

    own = OwnCheckpoint(port(drain_at=4), save=save, load=load)
    for step in range(5):
        own.step_done(step)
    store = new_store(tmp_path / "store")
    for generation, step in ((OLDER, 2), (NEWER, 4)):
        target = commit_saved(store, tmp_path, generation=generation, step=step, world_size=1)
    flip(tmp_path / "store" / "generations" / NEWER / "rank00000" / "step")
    again = port(restore_target=target)
    assert OwnCheckpoint(again, save=save, load=load).restore() == 3
    assert seen == [f"{2:9}"]
    (restored,) = again.of("restored")
    assert [one.generation_id for one in restored.refused] == [NEWER]
    assert "rank00000/step has checksum" in restored.refused[0].reason


def test_what_an_own_loader_refuses_is_told_too(tmp_path: Path) -> None:
    history = History(tmp_path)
    port = history.port(restore_target=history.newer)
    own = OwnCheckpoint(port, save=lambda directory, step: None, load=lambda directory, step: None)
    with pytest.raises(RestoreRefusedError, match=r"says saver .*, not own") as refused:
        own.restore()
    (told,) = port.of("refused")
    assert told.reason == f"RestoreRefusedError: {refused.value}"


def restored_event(*, refused: tuple[RefusedGeneration, ...]) -> e.CheckpointRestored:
    return e.CheckpointRestored(
        generation_id=OLDER,
        manifest_digest="older",
        step=2,
        restore_ms=1,
        verification=Verification.SIZES,
        refused=refused,
    )


def test_a_job_leaves_on_what_it_fell_back_to_and_not_on_what_is_damaged() -> None:
    newer = Committed(generation_id=NEWER, manifest_digest="newer", step=4)
    state = State(Attempt(job_id="job", epoch=1, attempt_id="a", committed=newer))
    gone = RefusedGeneration(generation_id=NEWER, reason="damaged")
    assert evolve(state, restored_event(refused=(gone,))).attempt.committed == Committed(
        generation_id=OLDER, manifest_digest="older", step=2
    )
    assert evolve(state, restored_event(refused=())).attempt.committed == newer
    newest = Committed(generation_id="newest", manifest_digest="newest", step=9)
    later = State(Attempt(job_id="job", epoch=1, attempt_id="a", committed=newest))
    assert evolve(later, restored_event(refused=(gone,))).attempt.committed == newest
