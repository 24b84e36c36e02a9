"""One save of one rank: plan, stage, write, report.

Every rank runs the same steps: plans go to the coordinator and come back divided (first
collective), each rank stages and writes its share, and what was written goes to the coordinator,
which writes ``.metadata`` last (second collective). A rank on which something fails sends that
instead of its answer, so nobody waits for it.

A rank that has what it had at the last save will get the same share again. It stages that before
it asks, so that training is blocked for no longer than its own copy takes.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from drainfsm.checkpoint.exchange import Exchange, RankFailure
from drainfsm.checkpoint.files import GenerationFiles
from drainfsm.checkpoint.planner import SharePlanner, item_bytes
from drainfsm.checkpoint.port import RankPort
from drainfsm.checkpoint.randomness import cuda_in_use
from drainfsm.checkpoint.replicas import warning_about
from drainfsm.checkpoint.staging import Staging
from drainfsm.checkpoint.waiting import reason_of, wait_while_wanted
from drainfsm.checkpoint.writer import GenerationWriter
from drainfsm.core.events import MemoryShortage
from drainfsm.core.manifest import Entry
from drainfsm.errors import NoRoomError, SaveFailedError
from drainfsm.store.base import ObjectStore
from drainfsm.store.checksums import available
from drainfsm.store.generations import generation_prefix

log = logging.getLogger("drainfsm.checkpoint")

JOIN_S = 5.0
"""For a thread that has nothing left to do."""


class RankSave:
    """Runs in a thread of its own; the main thread waits for as much of it as it needs."""

    def __init__(
        self,
        port: RankPort,
        store: ObjectStore,
        exchange: Exchange,
        staging: Staging,
        *,
        generation_id: str,
        state: dict[str, Any] | Exception,
        copy: bool,
        compare: bool = False,
    ) -> None:
        """``state``: as captured, or the error, which the other ranks must learn of. ``copy``:
        training goes on once this is staged. ``compare``: warn about parameters of one name that
        differ between ranks."""
        self.generation_id = generation_id
        self.saved_bytes: int | None = None
        """What this rank wrote; None: not done, or failed."""

        self._given_up = False
        """The main thread went on without waiting: training may have changed the state."""

        self._port = port
        self._store = store
        self._exchange = exchange
        self._staging = staging
        self._began = time.monotonic()
        self._copy = copy
        self._planner = SharePlanner(compare=compare, copy=copy, held_bytes=staging.held_bytes)
        self._files = GenerationFiles(
            store,
            generation_prefix(generation_id),
            rank=port.rank,
            algorithm=available(port.settings.checksum),
            aborted=self._aborted,
        )
        self._writer = GenerationWriter(generation_id, self._files)
        self._state = state
        self._failed = False
        self._local: list[WriteItem] = []
        self._early: SavePlan | None = None
        """The share that was staged before the ranks had agreed on it."""

        self._staged = threading.Event()
        self._done = threading.Event()
        self._device = torch.cuda.current_device() if cuda_in_use() else None
        self._thread = threading.Thread(
            target=self._run, name=f"drainfsm-save-{generation_id}", daemon=True
        )

    def start(self) -> None:
        if self._device is not None:
            torch.cuda.current_stream().synchronize()  # pending kernels belong to what is saved
        self._thread.start()

    def wait_staged(self) -> None:
        """Until training may change the state again, or the save is over."""
        self._wait(self._staged)

    def wait_done(self) -> None:
        """Wait until the save has succeeded or failed; bounded once it was given up.

        Its thread has ended, too. It may be the last to hold objects of torch, and a thread that
        lets go of one while the interpreter exits aborts the process.
        """
        self._wait(self._done)
        if self._done.is_set():
            self._thread.join(JOIN_S)

    def _wait(self, event: threading.Event) -> None:
        if not wait_while_wanted(event, self._aborted):
            self._given_up = True

    @property
    def over(self) -> bool:
        return self._done.is_set()

    def _aborted(self) -> bool:
        return self._given_up or self._port.save_aborted(self.generation_id)

    def _run(self) -> None:
        try:
            if self._device is not None:
                torch.cuda.set_device(self._device)
            self._save()
        except Exception as error:
            self._report_failed(reason_of(error), _shortage(error))
        finally:
            self._staged.set()
            self._done.set()

    def _save(self) -> None:
        plan = self._exchange.plan(self._local_plan, self._global_plan)
        written = self._write(plan)
        failed = written if isinstance(written, RankFailure) else None
        if failed is None and not self._exchange.coordinates:
            self._report_durable()
        results = self._exchange.collect(written)
        if failed is not None:
            raise SaveFailedError(failed.reason)
        if results is not None:
            self._writer.finish(self._planner.metadata, results)
            self._report_durable()

    def _local_plan(self) -> SavePlan:
        if isinstance(self._state, Exception):
            raise self._state
        self._check_wanted()
        self._planner.set_up_planner(
            self._state, self._writer.storage_meta(), self._exchange.coordinates
        )
        self._writer.set_up_storage_writer(
            self._exchange.coordinates, rank=self._exchange.rank, use_collectives=True
        )
        local = self._writer.prepare_local_plan(self._planner.create_local_plan())
        self._local = local.items
        self._stage_early()
        return local

    def _stage_early(self) -> None:
        """Stage early if this rank's share is known, and there is memory for it already."""
        share = self._staging.share_of(self._local)
        if not self._copy or self._exchange.broken or share is None:
            return
        if sum(map(item_bytes, share.items)) <= self._staging.held_bytes:
            self._early = self._planner.finish_plan(share)
            self._stage()

    def _stage(self) -> None:
        staged_bytes = self._planner.stage(self._staging)
        self._state = {}
        self._port.report_staged(self.generation_id, staged_bytes)
        self._staged.set()

    def _global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator. The generation's directory must be new: it is made here."""
        shares, _ = self._planner.create_global_plan(plans)
        self._store.create_tree(generation_prefix(self.generation_id))
        if self._planner.differing:
            log.warning(warning_about(self._planner.differing))
        return self._writer.prepare_global_plan(shares)

    def _write(self, plan: SavePlan) -> list[WriteResult] | RankFailure:
        """Stage and write this rank's share. The other ranks learn of a failure."""
        try:
            share = self._planner.finish_plan(plan)
            self._staging.remember_share(self._local, plan)
            if self._early is None:
                self._stage()
            elif self._early.items != share.items:
                raise SaveFailedError(
                    "another rank's state changed its shape since the last save, and with it the "
                    "shares; the next save takes that into account"
                )
            return self._writer.write_data(share, self._planner).wait()
        except Exception as error:
            self._report_failed(reason_of(error))
            return RankFailure(
                rank=self._exchange.rank, kind=SaveFailedError.__name__, reason=reason_of(error)
            )

    def _report_failed(self, reason: str, memory: MemoryShortage | None = None) -> None:
        if not self._failed:
            self._failed = True
            self._port.report_save_failed(self.generation_id, reason, memory=memory)

    def _check_wanted(self) -> None:
        if self._aborted():
            raise SaveFailedError("the save was given up")

    def _report_durable(self) -> None:
        self._check_wanted()
        entries: list[Entry] = sorted(self._files.entries, key=lambda entry: entry.name)
        self.saved_bytes = sum(entry.size_bytes for entry in entries)
        durable_ms = round((time.monotonic() - self._began) * 1_000)
        self._port.report_durable(self.generation_id, entries, durable_ms)


def _shortage(error: Exception) -> MemoryShortage | None:
    if not isinstance(error, NoRoomError):
        return None
    return MemoryShortage(
        host=error.host, needed_bytes=error.needed_bytes, free_bytes=error.free_bytes
    )
