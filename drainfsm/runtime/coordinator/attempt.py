"""The start of an attempt on node 0: claim the job, find what to restore, open the journal."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import msgspec

from drainfsm.core.inputs import StartAttempt
from drainfsm.core.orders import RestoreTarget
from drainfsm.core.requeue import RequeueRecord
from drainfsm.core.state import left_on
from drainfsm.errors import ConfigError
from drainfsm.log.journal import (
    Journal,
    journal_path,
    journals,
    prepare_directory,
    read_journal,
)
from drainfsm.log.server import NatsServer, agents_inbox, server_of
from drainfsm.log.signing import Signer, signer_of
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator import evidence
from drainfsm.runtime.coordinator.kept_records import bring_back
from drainfsm.runtime.coordinator.publisher import Publisher
from drainfsm.runtime.coordinator.requeue import needed
from drainfsm.store import Claimed, CommitLog, Head, ObjectStore, open_store
from drainfsm.store.requeues import check_restorable, read_requeue, restore_for

ASKED_MAX = 8
"""Journals that are read for the identity of their store; one whose attempt died at once has
none."""


class ClaimedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What a claimed attempt runs with."""

    job_id: str
    epoch: int
    attempt_id: str
    store_url: str
    restore: RequeueRecord | None
    start: StartAttempt
    journal: Journal
    publisher: Publisher
    signer: Signer | None = None

    @property
    def target(self) -> RestoreTarget | None:
        """The exact generation to restore; None: train from the beginning."""
        record = self.restore
        named = None if record is None else left_on(record)
        if record is None or named is None:
            return None
        return RestoreTarget(
            generation_id=named.generation_id,
            manifest_digest=named.manifest_digest,
            step=named.step,
            world_size=record.world_size,
            layout=record.layout,
        )


class AttemptEnvironment:
    """What an attempt starts from: the store, and the state directory of this machine."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def prepare(self) -> None:
        """Raises: ConfigError: the attempt could not keep its journal."""
        prepare_directory(self._config.state_dir, job_id=self._config.job)

    def open_store(self) -> ObjectStore:
        """Raises: ConfigError: the store does not exist, and must not be created there."""
        store = open_store(self._config.store)
        store.create(parents=self._config.create_store)
        return store

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def lock(self) -> AbstractContextManager[object]:
        return threading.Lock()

    def journal_epochs(self) -> tuple[int, ...]:
        """Of the job's attempts that have left a journal here, oldest first."""
        return tuple(journals(self._config.state_dir, self._config.job))

    def journal_store_id(self) -> str:
        """The store that the newest of them was claimed in; empty: unknown."""
        paths = journals(self._config.state_dir, self._config.job)
        newest_first = [paths[epoch] for epoch in sorted(paths, reverse=True)]
        store_ids = (evidence.store_of(read_journal(path)) for path in newest_first[:ASKED_MAX])
        return next(filter(None, store_ids), "")

    def evidence(self, *, before_epoch: int) -> evidence.PastAttempts:
        config = self._config
        return evidence.collect(config.state_dir, job_id=config.job, before_epoch=before_epoch)

    def signer(self) -> Signer | None:
        """Of the log: who this agent is to the NATS server; None: it shows no key.

        Raises:
            ConfigError: a file of it will not do.
        """
        return signer_of(nats_server(self._config)) if self._config.nats else None

    def open_journal(self, *, epoch: int) -> Journal:
        path = journal_path(self._config.state_dir, job_id=self._config.job, epoch=epoch)
        return Journal.open(path, job_id=self._config.job, epoch=epoch)


def nats_server(config: RunConfig) -> NatsServer:
    """The configured one, as an agent uses it."""
    options = {name: getattr(config, name) for name in config.__struct_fields__}
    named = {name: value for name, value in options.items() if name.startswith("nats")}
    return server_of(named, inbox_prefix=agents_inbox(config.job))


def new_attempt_id(environment: Mapping[str, str]) -> str:
    """Unique; under Slurm it begins with Slurm's name of this run, which is the job id (the same
    after a requeue) and the restart count."""
    unique = uuid.uuid4().hex
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id:
        return unique
    return f"slurm-{job_id}.{environment.get('SLURM_RESTART_COUNT') or 0}-{unique}"


def claim_attempt(
    config: RunConfig,
    clock: Clock,
    *,
    warn: Callable[[str], None],
    environment: AttemptEnvironment | None = None,
) -> ClaimedAttempt:
    """Blocks on the store. From here on earlier attempts are fenced.

    Raises:
        ConfigError: the state directory or the store cannot be used, or one knows of attempts that
            the other does not; nothing was claimed.
        StoreUnreachableError: the store does not answer.
        CommitLogError: the commit log is damaged, or of another job; nothing was claimed.
        RestoreRefusedError: the requeue record names a generation that no commit names; nothing
            was claimed.
        JournalLockedError: the journal of this epoch is in use.
    """
    environment = AttemptEnvironment(config) if environment is None else environment
    attempt_id, signer = new_attempt_id(os.environ), environment.signer()
    store, log, claimed = _claim(config, environment, attempt_id, now_unix_ms=clock.now_unix_ms())
    epoch, before = claimed.epoch, claimed.epoch - 1
    lost = before > 0 and read_requeue(store, epoch=before) is None
    restore = restore_for(
        store,
        log,
        claimed,
        now_unix_ms=clock.now_unix_ms(),
        node_count=config.nnodes,
        capacity=needed(config),
        damaged_layout=_damaged_layout(config),
    )
    _bring_back(store, environment, before_epoch=epoch, warn=warn)
    found = environment.evidence(before_epoch=epoch)
    start = _start(config, claimed, found if lost else None, store.url, attempt_id)
    journal = _open_journal(environment, epoch, warn)
    return ClaimedAttempt(
        job_id=config.job,
        epoch=epoch,
        attempt_id=attempt_id,
        store_url=store.url,
        restore=restore,
        start=msgspec.structs.replace(start, restore=restore, samples=found.samples),
        journal=journal,
        signer=signer,
        publisher=Publisher(
            store,
            log,
            job_id=config.job,
            epoch=epoch,
            attempt_id=attempt_id,
            settings=config.checkpoint,
            clock=clock,
            begins_after=-1 if restore is None or restore.step is None else restore.step,
            log_head=lambda: journal.head,
            lock=environment.lock(),
        ),
    )


def _claim(
    config: RunConfig, environment: AttemptEnvironment, attempt_id: str, *, now_unix_ms: int
) -> tuple[ObjectStore, CommitLog, Claimed]:
    """Check everything that can be wrong on this machine first, because a claim fences."""
    environment.prepare()
    store = environment.open_store()
    log = CommitLog(store, job_id=config.job, pause=environment.pause)

    def admit(head: Head) -> None:
        _check_known(environment, head, log.store_id, job=config.job, url=store.url)
        check_restorable(store, log, head, damaged_layout=_damaged_layout(config))

    return store, log, log.claim(attempt_id=attempt_id, now_unix_ms=now_unix_ms, admit=admit)


def _bring_back(
    store: ObjectStore,
    environment: AttemptEnvironment,
    *,
    before_epoch: int,
    warn: Callable[[str], None],
) -> None:
    epochs = [epoch for epoch in environment.journal_epochs() if epoch < before_epoch]
    bring_back(store, lambda epoch: environment.open_journal(epoch=epoch), epochs, warn=warn)


def _damaged_layout(config: RunConfig) -> dict[str, int] | None:
    saving = config.checkpoint
    return saving.layout if saving.on_refused == "fallback" else None


def _check_known(
    environment: AttemptEnvironment, head: Head, store_id: str, *, job: str, url: str
) -> None:
    """A claim precedes its journal: journals of attempts that the store does not know mean that it
    is another store, or has lost claims. Journals also name the store that they were claimed in.

    Raises: ConfigError.
    """
    epochs = environment.journal_epochs()
    newest = max(epochs, default=0)
    if newest <= head.epoch:
        known_id = environment.journal_store_id()
        if known_id and known_id != store_id:
            raise ConfigError(
                f"attempt {newest} of job {job}, whose journal is on this machine, was claimed in "
                f"the store {known_id}, and {url} is {store_id or 'an unknown one'}: is it the "
                "right one, and mounted? If it is, use another --state-dir"
            )
        return
    attempts = f"attempt {newest}" if len(epochs) == 1 else f"attempts {epochs[0]} to {newest}"
    known = f"only attempts up to {head.epoch}" if head.epoch else "none"
    raise ConfigError(
        f"this machine has journals of {attempts} of job {job}, the store {url} has {known}: is it "
        "the right one, and mounted? If the job is really to start afresh, use another --job or "
        "another --state-dir"
    )


def _start(
    config: RunConfig,
    claimed: Claimed,
    of_lost: evidence.PastAttempts | None,
    store_url: str,
    attempt_id: str,
) -> StartAttempt:
    """``of_lost``: what is known of the attempt before, if it was lost."""
    return StartAttempt(
        attempt_id=attempt_id,
        node_count=config.nnodes,
        allowances=config.allowances,
        grace_ms=round(config.grace_s * 1_000),
        store=store_url,
        store_id=claimed.store_id,
        claim_slot=claimed.slot,
        restore=None,
        lost_epoch=claimed.epoch - 1 if of_lost else None,
        lost_last_seen_unix_ms=of_lost.last_seen_unix_ms if of_lost else None,
    )


def _open_journal(
    environment: AttemptEnvironment, epoch: int, warn: Callable[[str], None]
) -> Journal:
    journal = environment.open_journal(epoch=epoch)
    if journal.dropped_bytes:
        warn(f"{journal.path}: a torn tail of {journal.dropped_bytes} bytes was cut off")
    return journal
