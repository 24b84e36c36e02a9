"""A rank's session without an agent, and the coordinator's part in a save, for tests.

Ranks may be processes: what they report goes into one file each, which ``commit_saved`` reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from drainfsm.core.events import CheckpointRestored, MemoryShortage
from drainfsm.core.manifest import DCP_SAVER, Commit, Entry, Manifest, verify_reported
from drainfsm.core.orders import CheckpointSettings, RestoreTarget, SaveOrder
from drainfsm.core.requeue import RefusedGeneration
from drainfsm.core.state import generation_id
from drainfsm.errors import SaveFailedError
from drainfsm.store import open_store
from drainfsm.store.base import ObjectStore
from drainfsm.store.commits import CommitLog
from drainfsm.store.generations import verify_generation, write_manifest

JOB = "job"
ATTEMPT = "attempt"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a rank told its session."""

    kind: str
    rank: int
    generation_id: str = ""
    step: int = -1
    size_bytes: int = 0
    took_ms: int = 0
    entries: tuple[Entry, ...] = ()
    reason: str = ""
    thread: str = ""
    saver: str = ""
    refused: tuple[RefusedGeneration, ...] = ()
    not_restored: tuple[str, ...] = ()
    memory: MemoryShortage | None = None


class RecordedPort:
    """Does what a session does for a checkpoint. Drains are known beforehand, by stop step."""

    def __init__(
        self,
        directory: Path,
        *,
        store_url: str,
        rank: int = 0,
        world_size: int = 1,
        settings: CheckpointSettings | None = None,
        restore_target: RestoreTarget | None = None,
        drain_at: int | None = None,
        epoch: int = 1,
        restart: int = 0,
    ) -> None:
        self.rank = rank
        self.restart = restart
        self.world_size = world_size
        self.store_url = store_url
        self.job_id = JOB
        self.epoch = epoch
        self.settings = settings or CheckpointSettings()
        self.restore_target = restore_target
        self.drain_at = drain_at
        self.reports: list[Report] = []
        self.aborted: set[str] = set()
        self._path = directory / f"rank{rank}.jsonl"
        self._lock = threading.Lock()
        self._save: Callable[[SaveOrder], None] | None = None
        self._quiesced: list[Callable[[], None]] = []
        self._closing: list[Callable[[], None]] = []
        if store_url:
            open_store(store_url).create()  # as the agent did before it started the ranks

    def step_done(self, step: int) -> bool:
        if step != self.drain_at:
            return False
        for handler in self._quiesced:
            handler()
        self._report("quiesced", step=step)
        order = SaveOrder(
            generation_id=generation_id(epoch=self.epoch, step=step, saver="d1"),
            step=step,
            durable_by_unix_ms=0,
        )
        if self._save is not None:
            self._save(order)
        return True

    def on_save(self, handler: Callable[[SaveOrder], None]) -> None:
        self._save = handler

    def on_quiesced(self, handler: Callable[[], None]) -> None:
        self._quiesced.append(handler)

    def on_close(self, handler: Callable[[], None]) -> None:
        self._closing.append(handler)

    @property
    def draining(self) -> bool:
        return False

    def close(self) -> None:
        """What ``session.close()`` does for a checkpoint."""
        for handler in (*self._quiesced, *self._closing):
            handler()

    def declare_size(self, save_bytes: int) -> None:
        self._report("size", size_bytes=save_bytes)

    def report_save_began(self, generation_id: str, step: int) -> None:
        self._report("began", generation_id=generation_id, step=step)

    def report_staged(self, generation_id: str, staged_bytes: int) -> None:
        self._report("staged", generation_id=generation_id, size_bytes=staged_bytes)

    def report_durable(
        self,
        generation_id: str,
        entries: Sequence[Entry],
        durable_ms: int,
        *,
        saver: str = "",
    ) -> None:
        self._report(
            "durable",
            generation_id=generation_id,
            entries=tuple(entries),
            took_ms=durable_ms,
            saver=saver,
        )

    def report_save_failed(
        self, generation_id: str, reason: str, *, memory: MemoryShortage | None = None
    ) -> None:
        self._report("failed", generation_id=generation_id, reason=reason, memory=memory)

    def begin_after(self, step: int) -> None:
        pass

    def report_restored(self, restored: CheckpointRestored) -> None:
        self._report(
            "restored",
            generation_id=restored.generation_id,
            step=restored.step,
            took_ms=restored.restore_ms,
            reason=restored.verification,
            refused=restored.refused,
            not_restored=restored.not_restored,
        )

    def report_restore_refused(
        self, *, generation_id: str, step: int, error: str, reason: str
    ) -> None:
        self._report("refused", generation_id=generation_id, step=step, reason=f"{error}: {reason}")

    def between_steps(self) -> AbstractContextManager[None]:
        return nullcontext()

    def save_aborted(self, generation_id: str) -> bool:
        return generation_id in self.aborted

    def of(self, kind: str) -> list[Report]:
        with self._lock:
            return [report for report in self.reports if report.kind == kind]

    def _report(self, kind: str, **fields: Any) -> None:
        thread = threading.current_thread().name
        report = Report(kind=kind, rank=self.rank, thread=thread, **fields)
        with self._lock, self._path.open("ab") as file:
            self.reports.append(report)
            file.write(msgspec.json.encode(report) + b"\n")


def read_reports(directory: Path) -> list[Report]:
    """Of all ranks, by rank and then in order."""
    return [
        msgspec.json.decode(line, type=Report)
        for path in sorted(directory.glob("rank*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]


def commit_saved(
    store: ObjectStore,
    directory: Path,
    *,
    generation: str,
    step: int,
    world_size: int,
    layout: dict[str, int] | None = None,
) -> RestoreTarget:
    """What a coordinator does once the ranks have reported, with the real store.

    Raises:
        SaveFailedError: a rank reported a failure, or none at all.
        ManifestMismatchError: what was reported is not what is there.
    """
    reports = [r for r in read_reports(directory) if r.generation_id == generation]
    for report in reports:
        if report.kind == "failed":
            raise SaveFailedError(f"rank {report.rank}: {report.reason}")
    durable = [report for report in reports if report.kind == "durable"]
    entries = tuple(entry for report in durable for entry in report.entries)
    counts = {report.rank: len(report.entries) for report in durable}
    verify_reported(entries, ranks=range(world_size), files_per_rank=counts)
    manifest = Manifest(
        job_id=JOB,
        epoch=1,
        generation_id=generation,
        step=step,
        world_size=world_size,
        layout=layout or {},
        saver=durable[0].saver or DCP_SAVER,
        entries=entries,
        created_unix_ms=0,
    )
    verify_generation(store, manifest, checksums=False)
    digest = write_manifest(store, manifest)
    log = CommitLog(store, job_id=JOB)
    if log.head().slot == 0:
        log.claim(attempt_id=ATTEMPT, now_unix_ms=0)
    log.publish(_commit(manifest, digest))
    return RestoreTarget(
        generation_id=generation,
        manifest_digest=digest,
        step=step,
        world_size=world_size,
        layout=manifest.layout,
    )


def _commit(manifest: Manifest, digest: str) -> Commit:
    return Commit(
        job_id=manifest.job_id,
        epoch=manifest.epoch,
        attempt_id=ATTEMPT,
        generation_id=manifest.generation_id,
        manifest_digest=digest,
        step=manifest.step,
        world_size=manifest.world_size,
        total_bytes=manifest.total_bytes,
        file_count=len(manifest.entries),
        committed_unix_ms=0,
    )
