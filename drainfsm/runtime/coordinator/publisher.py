"""Verify, manifest, commit, requeue record: the coordinator's calls to the store, all blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager

import msgspec
from msgspec import UNSET

from drainfsm.core import inputs as i
from drainfsm.core.chain import LogHead
from drainfsm.core.manifest import DCP_SAVER, Commit, Manifest, verify_reported, verify_stored
from drainfsm.core.orders import CheckpointSettings, RestoreTarget, target_of
from drainfsm.core.records import Record
from drainfsm.core.requeue import RequeueRecord
from drainfsm.errors import ManifestMismatchError, SaveFailedError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.coordinator.saves import Written
from drainfsm.store import CommitLog, ObjectStore
from drainfsm.store.generations import generation_prefix, write_manifest
from drainfsm.store.kept_log import keep
from drainfsm.store.requeues import count_without_progress, write_requeue


class Published(msgspec.Struct, frozen=True, kw_only=True):
    manifest_digest: str
    slot: int


class Publisher:
    """One attempt's writer of manifests and commit records. Called on threads, one at a time."""

    def __init__(
        self,
        store: ObjectStore,
        log: CommitLog,
        *,
        job_id: str,
        epoch: int,
        attempt_id: str,
        settings: CheckpointSettings,
        clock: Clock,
        begins_after: int = -1,
        log_head: Callable[[], LogHead | None] = lambda: None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        """``begins_after``: the step that there is to restore; -1: none. ``log_head``: of the
        attempt's log, put on record here. ``lock``: the simulator's, which runs no real threads."""
        self._store = store
        self._log = log
        self._job_id = job_id
        self._epoch = epoch
        self._attempt_id = attempt_id
        self._settings = settings
        self._clock = clock
        self._log_head = log_head
        self._one_at_a_time = threading.Lock() if lock is None else lock
        self._closed = False
        self._newest_step = -1
        """Committed by the present ranks."""

        self._floor = begins_after
        """What the present ranks restored, or were to restore."""

    def verify(self, written: Written, *, world_size: int) -> i.ReportVerified:
        """Every file that a rank reported is in the store, and no other.

        Raises:
            ManifestMismatchError: names what is missing, extra or of another size.
            StoreUnreachableError: the store does not answer.
        """
        if len(written.savers) > 1:
            raise ManifestMismatchError(f"the ranks save in different ways: {written.savers}")
        self._log.check_store()
        verify_reported(
            written.entries, ranks=range(world_size), files_per_rank=written.file_counts
        )
        stored = self._store.list(generation_prefix(written.generation_id))
        verify_stored(written.entries, stored)
        return i.ReportVerified(
            generation_id=written.generation_id,
            expected_count=len(written.entries),
            verified_count=len(stored),
            verified_bytes=sum(stored.values()),
        )

    def publish(self, written: Written, *, world_size: int, given_up: threading.Event) -> Published:
        """Write the manifest and the commit record of a verified generation.

        Raises:
            SaveFailedError: the save was given up meanwhile, or is older than one that was
                committed or restored before it; nothing was published.
            FencedError: a newer epoch has claimed the job.
            StoreUnreachableError: no answer; whether it is committed is not known.
        """
        with self._one_at_a_time:
            self._check_wanted(written)
            now_unix_ms = self._clock.now_unix_ms()
            manifest = Manifest(
                job_id=self._job_id,
                epoch=self._epoch,
                generation_id=written.generation_id,
                step=written.step,
                world_size=world_size,
                layout=self._settings.layout,
                saver=written.savers[0] or DCP_SAVER,
                entries=tuple(sorted(written.entries, key=lambda entry: entry.name)),
                created_unix_ms=now_unix_ms,
            )
            self._log.check_store()  # never write into something else in its place
            digest = write_manifest(self._store, manifest)
            if given_up.is_set() or self._closed:
                raise SaveFailedError(f"{written.generation_id} was given up before its commit")
            slot = self._log.publish(
                Commit(
                    job_id=self._job_id,
                    epoch=self._epoch,
                    attempt_id=self._attempt_id,
                    generation_id=written.generation_id,
                    manifest_digest=digest,
                    step=written.step,
                    world_size=world_size,
                    total_bytes=written.total_bytes,
                    file_count=len(written.entries),
                    committed_unix_ms=now_unix_ms,
                    log=self._log_head() or UNSET,
                )
            )
            self._newest_step = written.step
            return Published(manifest_digest=digest, slot=slot)

    def _check_wanted(self, written: Written) -> None:
        if self._closed:
            raise SaveFailedError(f"{written.generation_id} came after the requeue record")
        if written.step < self._newest_step:
            raise SaveFailedError(f"step {self._newest_step} was committed before it")
        if written.step < self._floor and not self._settings.rewind:
            raise SaveFailedError(
                f"step {self._floor} was there to restore, and this one is older: does the job "
                "call restore() and begin where it says? (rewind = true in [checkpoint] allows it)"
            )

    def restored(self, step: int) -> None:
        """The ranks go on after this step. It is older than the one that they were told if that one
        was damaged."""
        self._floor = step

    def close(self) -> None:
        """Publish nothing more: the requeue record, which comes next, names the newest commit."""
        self._closed = True  # those that wait for their turn are refused too
        with self._one_at_a_time:
            pass  # waits for the one under way

    def record_requeue(
        self, record: RequeueRecord, *, refused: Container[str] = ()
    ) -> RequeueRecord:
        """Write the record, as it was written. Where this attempt has committed something newer
        than the record knows (the answer is still under way), that is what it names, unless its
        own ranks have ``refused`` it as damaged.

        Raises:
            FencedError: a newer epoch has claimed the job; nothing was written.
            StoreUnreachableError: no answer; without a record the newest commit counts.
        """
        with self._one_at_a_time:
            self._log.check_not_fenced(self._epoch)
            newest = self._log.head().commit
            known = newest is None or newest.epoch != self._epoch
            if newest is not None and not known and newest.generation_id not in refused:
                record = msgspec.structs.replace(
                    record,
                    generation_id=newest.generation_id,
                    manifest_digest=newest.manifest_digest,
                    step=newest.step,
                    world_size=newest.world_size,
                    layout=self._settings.layout,
                )
            record = msgspec.structs.replace(
                record, store_id=self._log.store_id, log=self._log_head() or UNSET
            )
            write_requeue(self._store, record)
        return record

    def count_without_progress(self, *, most: int) -> int:
        """Attempts in a row before this one that have left where the one before it did.

        Raises:
            CommitLogError: a record is garbled.
            StoreUnreachableError: the store does not answer.
        """
        return count_without_progress(self._store, epoch=self._epoch - 1, most=most)

    def keep(self, records: Sequence[Record]) -> None:
        """Put records beside the checkpoints that the journal could not take, or the stream lacks.

        Raises:
            StoreUnreachableError: the store does not take them.
        """
        keep(self._store, records)

    def begin_again(self) -> RestoreTarget | None:
        """What this attempt has committed last, for ranks that are started again; None: nothing.
        They may have to go back further, if it turns out to be damaged.

        Raises:
            StoreUnreachableError: the store does not answer.
        """
        with self._one_at_a_time:
            self._newest_step = -1
            newest = self._log.head().commit
        if newest is None or newest.epoch != self._epoch:
            return None
        self._floor = newest.step
        return target_of(newest, layout=self._settings.layout)

    def check_not_fenced(self) -> None:
        """Raises: FencedError: a newer epoch has claimed the job."""
        with self._one_at_a_time:
            self._log.check_not_fenced(self._epoch)
