"""One save of one rank: plan, stage, write, report.

Every rank runs the same steps: it says what it has (first collective), plans go to the coordinator
and come back divided unless the plan of an earlier save still holds (second), it stages and writes
its share, and what was written goes to the coordinator, which writes ``.metadata`` last (third). A
rank on which something fails sends that instead of its answer, so nobody waits for it.

A rank that has what it had at the last save will get the same share again. It stages that before
it asks, so that training is blocked for no longer than its own copy takes.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.planner import SavePlan

from drainfsm.checkpoint.agreed import Agreed, Agreement, Shape, shape_of
from drainfsm.checkpoint.exchange import Exchange, RankFailure
from drainfsm.checkpoint.files import GenerationFiles
from drainfsm.checkpoint.places import Places, ReportedPlaces
from drainfsm.checkpoint.planner import SharePlanner, item_bytes, needed_bytes
from drainfsm.checkpoint.port import RankPort
from drainfsm.checkpoint.randomness import cuda_in_use
from drainfsm.checkpoint.replicas import warning_about
from drainfsm.checkpoint.room import Room, check_room
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
        agreement: Agreement,
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
        self._agreement = agreement
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
        self._state: Any = state
        self._failed = False
        self._shape: Shape | None = None
        self._known: Agreed | None = None
        """What had been agreed for a rank that has this."""

        self._report_in_full = True
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

    @torch.no_grad()
    def _save(self) -> None:
        agreed = self._agree()
        written = self._write(agreed)
        failed = written if isinstance(written, RankFailure) else None
        if failed is None and not self._exchange.coordinates:
            self._report_durable()
        reports = self._exchange.collect(written)
        if failed is not None:
            raise SaveFailedError(failed.reason)
        if reports is not None and agreed.places is not None:
            self._writer.write_metadata(agreed.places, reports)
            self._report_durable()

    def _agree(self) -> Agreed:
        """What every rank writes: as at an earlier save if all have what they had then."""
        self._writer.set_up_storage_writer(
            self._exchange.coordinates, rank=self._exchange.rank, use_collectives=True
        )
        answer = self._exchange.plan(self._has, self._decide)
        self._report_in_full = answer.report_in_full
        if not answer.plan_anew:
            assert self._known is not None, "what this rank had said"
            return self._known
        share = self._exchange.plan(self._local_plan, self._global_plan)
        places = Places(self._planner.metadata) if self._exchange.coordinates else None
        agreed = Agreed(
            save=self.generation_id,
            shape=self._shape,
            share=share,
            share_bytes=sum(map(item_bytes, share.items)),
            places=places,
        )
        self._agreement.remember(agreed)
        return agreed

    def _has(self) -> _Has:
        """Which plan would do for this rank. Its share of that is staged on the way."""
        if isinstance(self._state, Exception):
            raise self._state
        self._check_wanted()
        self._shape = shape_of(self._state)
        known = self._known = self._agreement.known(self._shape)
        if known is None:
            return _Has(save="", needed_bytes=0, room=None)
        room = self._planner.room(self._state)
        held_bytes = self._staging.held_bytes
        if self._copy and known.share_bytes <= held_bytes and not self._exchange.broken:
            self._early = known.share
            self._stage(known.share)
        needed = needed_bytes(known.share, room)
        return _Has(save=known.save, needed_bytes=needed, room=room._replace(in_place=frozenset()))

    def _decide(self, all_have: list[_Has]) -> list[_Answer]:
        """On the coordinator: may the plan be used again that it knows? All ranks must know it."""
        known = self._known
        if known is None or known.places is None or any(h.save != known.save for h in all_have):
            return [_Answer(plan_anew=True, report_in_full=True)] * len(all_have)
        rooms = [has.room for has in all_have if has.room is not None]
        check_room(rooms, [has.needed_bytes for has in all_have])
        self._make_directory()
        return [_Answer(plan_anew=False, report_in_full=not known.places.known)] * len(all_have)

    def _local_plan(self) -> SavePlan:
        state: dict[str, Any] = {
            key: value.detach() if isinstance(value, Tensor) else value
            for key, value in self._state.items()
        }
        self._planner.set_up_planner(state, self._writer.storage_meta(), self._exchange.coordinates)
        return self._writer.prepare_local_plan(self._planner.create_local_plan())

    def _stage(self, share: SavePlan) -> None:
        self._planner.set_up_share(self._state, share)
        staged_bytes = self._planner.stage(self._staging)
        self._port.report_staged(self.generation_id, staged_bytes)
        self._staged.set()

    def _global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator. The generation's directory must be new: it is made here."""
        shares, _ = self._planner.create_global_plan(plans)
        self._make_directory()
        if self._planner.differing:
            log.warning(warning_about(self._planner.differing))
        return self._writer.prepare_global_plan(shares)

    def _make_directory(self) -> None:
        """Raises:
        SlotTakenError: a save has written there.
        """
        self._store.create_tree(generation_prefix(self.generation_id))

    def _write(self, agreed: Agreed) -> ReportedPlaces | RankFailure:
        """Stage and write this rank's share. The other ranks learn of a failure."""
        try:
            if self._early is None:
                self._stage(agreed.share)
            elif self._early.items != agreed.share.items:
                raise SaveFailedError(
                    "another rank's state changed its shape since the last save, and with it the "
                    "shares; the next save takes that into account"
                )
            self._state = {}
            results = self._writer.write_share(agreed.share, self._planner)
            return agreed.report(results, in_full=self._report_in_full)
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


class _Has(NamedTuple):
    """What a rank says first."""

    save: str
    """The one at whose plan it had what it has now; empty: there was none."""

    needed_bytes: int
    """More of host memory, to stage its share of that plan."""

    room: Room | None


class _Answer(NamedTuple):
    """To all ranks alike."""

    plan_anew: bool
    report_in_full: bool


def _shortage(error: Exception) -> MemoryShortage | None:
    if not isinstance(error, NoRoomError):
        return None
    return MemoryShortage(
        host=error.host, needed_bytes=error.needed_bytes, free_bytes=error.free_bytes
    )
