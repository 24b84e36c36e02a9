"""``session.own_checkpoint(...)``: for jobs that write their checkpoints themselves. No torch.

The job writes files (``torch.save``, Megatron, safetensors) into a directory that it is given.
drainfsm hashes them or takes their checksums, makes them durable, verifies and commits them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from pathlib import Path

from drainfsm.checkpoint.gate import (
    check_job,
    refusals_reported,
    restore_newest_whole,
    verified_manifest,
)
from drainfsm.checkpoint.own_files import (
    WrittenFiles,
    begin_directory,
    found_files,
    make_durable,
    names_files,
    rank_directory,
)
from drainfsm.checkpoint.port import RankPort
from drainfsm.checkpoint.progress import Progress
from drainfsm.checkpoint.waiting import reason_of, wait_while_wanted
from drainfsm.core.manifest import DCP_SAVER, Entry, Manifest
from drainfsm.core.orders import RestoreTarget, SaveOrder
from drainfsm.core.state import periodic_id
from drainfsm.core.words import OnRefused, Verification
from drainfsm.errors import (
    ConfigError,
    RestoreRefusedError,
    SaveFailedError,
)
from drainfsm.store import PosixStore, open_store
from drainfsm.store.checksums import available
from drainfsm.store.generations import generation_prefix, verify_checksums

Saver = Callable[[Path, int], WrittenFiles]
Loader = Callable[[Path, int], object]

STUCK = "the save before was given up and is still stuck"


class OwnCheckpoint:
    """Commits and restores what a job's own functions write and read.

    ``save(directory, step)`` writes this rank's files and returns when they are complete. It is
    called on the main thread, between two steps. The directory is this rank's alone; with
    ``shared`` it is one for all ranks (Megatron and ``torch.distributed.checkpoint`` want that),
    and ``save`` must return the names of those files that this rank answers for, each file by one
    rank. In place of names it may return a mapping of names to checksums that it knows already
    (``sha256:<hex>``, ``xxh3_128:<hex>``): these files are not read again.

    ``load(directory, step)`` reads them back. The directory must not be changed.
    """

    def __init__(
        self,
        port: RankPort,
        *,
        save: Saver,
        load: Loader,
        shared: bool = False,
        saver: str = "own",
        save_bytes: float = 0,
    ) -> None:
        """``saver``: name of the format; a generation of another one is not loaded.
        ``save_bytes``: about how much this rank writes, for the first drain's decision.

        Raises:
            ConfigError: the store is not on a file system, or a setting does not work with this.
        """
        self._port = port
        self._save_files = save
        self._load_files = load
        self._shared = shared
        self._saver = f"{saver} (shared)" if shared else saver
        self._active = bool(port.store_url)
        self._progress = Progress(port)
        self._commit: _Commit | None = None
        if saver in ("", DCP_SAVER):
            raise ConfigError(f"saver {saver!r}: give the format that save() writes another name")
        if not self._active:
            return
        store = open_store(port.store_url)
        if not isinstance(store, PosixStore):
            raise ConfigError(
                f"own_checkpoint writes into a directory, and {port.store_url} has none: choose a "
                "store on a file system, or session.checkpoint(...), which streams"
            )
        if port.settings.every_s:
            raise ConfigError("every_s: own_checkpoint saves by count of steps; set every_steps")
        self._checksum = available(port.settings.checksum)  # a wrong name is found here
        self._store = store
        if save_bytes:
            port.declare_size(round(save_bytes))
        port.on_save(self._drain)
        port.on_quiesced(self._wait)
        port.on_close(self._finish)

    @property
    def every_steps(self) -> int:
        """A periodic save after so many steps; 0: only drains save, and the end of the loop."""
        return self._port.settings.every_steps if self._active else 0

    def restore(self) -> int:
        """The first step to train: after the one that the requeue record names; 0 on a fresh job.

        Raises:
            RestoreRefusedError: the recorded generation cannot be continued here.
            ManifestMismatchError: it is not what it was when it was committed.
        """
        target = self._port.restore_target
        if target is None or not self._active:
            return 0
        with refusals_reported(self._port, target):
            return self._restore(target)

    def _restore(self, target: RestoreTarget) -> int:
        """Ranks do not communicate here: where they may fall back, each of them verifies
        everything, and comes to the same result."""
        restored = restore_newest_whole(self._port, self._store, target, self._load)
        self._progress.restored(restored.step)
        return restored.step + 1

    def _load(self, target: RestoreTarget) -> Sequence[str]:
        self._verify(target)
        directory = self._store.root / generation_prefix(target.generation_id)
        if not self._shared:
            directory /= rank_directory(self._port.rank)
        try:
            self._load_files(directory, target.step)
        except Exception as error:  # whatever the job's function may raise
            raise RestoreRefusedError(
                f"load() of {target.generation_id} failed: {reason_of(error)}"
            ) from error
        return ()

    def step_done(self, step: int) -> bool:
        """Call after every completed optimizer step, on every rank. True: leave the loop now.

        Raises:
            NotRestoredError: the committed generation holds this step already.
        """
        step = index(step)
        self._progress.done(step)
        if self._port.step_done(step):
            self._progress.leaves()
            return True
        every = self._port.settings.every_steps
        if self._active and every and (step + 1) % every == 0:
            with self._port.between_steps():
                self._periodic(step, asynchronous=self._port.settings.asynchronous)
        return False

    def close(self) -> None:
        """Wait for a save that is still being hashed and made durable."""
        self._wait()

    def _verify(self, target: RestoreTarget) -> None:
        if check_job(self._port, target) and not self._shared:
            raise RestoreRefusedError(
                f"{target.generation_id} has a directory for each of its {target.world_size} "
                "ranks, and only they can read it again: start the job with as many"
            )
        manifest = verified_manifest(self._port, self._store, target, saver=self._saver)
        if self._port.settings.verify == Verification.CHECKSUMS:
            verify_checksums(self._store, target.generation_id, self._to_verify(manifest))

    def _to_verify(self, manifest: Manifest) -> Sequence[Entry]:
        if self._port.settings.on_refused == OnRefused.FALLBACK:
            return manifest.entries
        if self._shared:
            return manifest.entries[self._port.rank :: self._port.world_size]
        own = f"{rank_directory(self._port.rank)}/"
        return [entry for entry in manifest.entries if entry.name.startswith(own)]

    def _finish(self) -> None:
        """The loop ended by itself: its last step is saved like any other."""
        step = self._progress.to_save_at_the_end()
        if step is not None:
            self._periodic(step, asynchronous=False)

    def _periodic(self, step: int, *, asynchronous: bool) -> None:
        """Never raises: a failed save is reported, and training goes on."""
        self._progress.saved(step)
        generation = periodic_id(epoch=self._port.epoch, step=step, restart=self._port.restart)
        self._wait()
        self._port.report_save_began(generation, step)
        self._begin(generation, step)
        if not asynchronous:
            self._wait()

    def _drain(self, order: SaveOrder) -> None:
        if reason := self._progress.misses(order.step):
            self._port.report_save_failed(order.generation_id, reason)
            return
        self._begin(order.generation_id, order.step)
        self._wait()

    def _begin(self, generation: str, step: int) -> None:
        """The job writes, here and now; hashing and fsync go on in a thread. Where ranks share a
        directory, none may stay away from ``save``: it may be collective."""
        stuck = self._commit is not None
        if stuck and not self._shared:
            self._port.report_save_failed(generation, STUCK)
            return
        began = time.monotonic()
        try:
            directory = begin_directory(
                self._store, generation, rank=self._port.rank, shared=self._shared
            )
            said = self._save_files(directory, step)
            if not self._shared and not names_files(said):
                said = None  # a lambda returns whatever its last call does
            if said is None and self._shared:
                raise SaveFailedError(
                    "save() returned no names: in a shared directory each rank says which files "
                    "it answers for"
                )
            names = found_files(directory, said)
            if stuck:
                raise SaveFailedError(STUCK)
            size = sum((directory / name).stat().st_size for name in names)
        except Exception as error:  # whatever the job's function may raise
            self._port.report_save_failed(generation, reason_of(error))
            return
        self._port.report_staged(generation, size)
        prefix = "" if self._shared else f"{rank_directory(self._port.rank)}/"
        self._commit = _Commit(self._port, generation, saver=self._saver, began=began)
        self._commit.start(
            lambda proceed: make_durable(
                directory,
                names,
                prefix=prefix,
                rank=self._port.rank,
                algorithm=self._checksum,
                proceed=proceed,
            )
        )

    def _wait(self) -> None:
        if self._commit is not None and self._commit.wait():
            self._commit = None


class _Commit:
    """Hashing and fsync of one save, in a thread of its own."""

    def __init__(self, port: RankPort, generation: str, *, saver: str, began: float) -> None:
        self._port = port
        self._generation = generation
        self._saver = saver
        self._began = began
        self._done = threading.Event()

    def start(self, work: Callable[[Callable[[], None]], list[Entry]]) -> None:
        name = f"drainfsm-save-{self._generation}"
        threading.Thread(target=self._run, args=(work,), name=name, daemon=True).start()

    def wait(self) -> bool:
        """Wait until it has succeeded or failed. False: it was given up, and is stuck."""
        given_up = partial(self._port.save_aborted, self._generation)
        return wait_while_wanted(self._done, given_up)

    def _run(self, work: Callable[[Callable[[], None]], list[Entry]]) -> None:
        try:
            entries = work(self._proceed)
            self._proceed()
            took_ms = round((time.monotonic() - self._began) * 1_000)
            self._port.report_durable(self._generation, entries, took_ms, saver=self._saver)
            self._port.declare_size(sum(entry.size_bytes for entry in entries))
        except Exception as error:
            self._port.report_save_failed(self._generation, reason_of(error))
        finally:
            self._done.set()

    def _proceed(self) -> None:
        if self._port.save_aborted(self._generation):
            raise SaveFailedError("the save was given up")
