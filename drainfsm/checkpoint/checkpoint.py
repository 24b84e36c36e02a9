"""``session.checkpoint(...)``: what a training loop sees of saving and restoring."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

from torch import nn

from drainfsm.checkpoint.agreed import Agreement
from drainfsm.checkpoint.cadence import Cadence
from drainfsm.checkpoint.exchange import Exchange
from drainfsm.checkpoint.gate import refusals_reported
from drainfsm.checkpoint.parts import Parts
from drainfsm.checkpoint.port import RankPort
from drainfsm.checkpoint.progress import Progress
from drainfsm.checkpoint.restoring import restore
from drainfsm.checkpoint.saving import RankSave
from drainfsm.checkpoint.staging import Staging
from drainfsm.core.orders import SaveOrder
from drainfsm.core.state import periodic_id
from drainfsm.errors import ConfigError, SaveFailedError
from drainfsm.store import open_store
from drainfsm.store.checksums import available


class Checkpoint:
    """Saves and restores the state of one training job, on every rank alike.

    Parts may be modules (plain, DDP, compiled or FSDP2), optimizers, ``torch.Generator``, and
    anything with ``state_dict()`` and ``load_state_dict()``; a list of parts counts one by one.
    Give a plain ``DataLoader`` a ``generator`` of its own: it draws from the global one when
    iteration begins, which a resumed run does once more than an uninterrupted one.
    """

    def __init__(
        self,
        port: RankPort,
        *,
        model: nn.Module,
        optimizer: Any = None,
        scheduler: Any = None,
        loader: Any = None,
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        """Collective: every rank makes one, after ``init_process_group`` if there are several.
        ``parts``: everything else, by name.

        Raises:
            ConfigError: a part cannot be saved, or torch.distributed has other ranks.
        """
        self._port = port
        named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
        if taken := named.keys() & (parts or {}).keys():
            raise ConfigError(f"parts: {', '.join(sorted(taken))} has an argument of its own")
        self._parts = Parts(named | dict(parts or {}))
        self._active = bool(port.store_url)
        self._save: RankSave | None = None
        self._compared = False
        self._progress = Progress(port)
        self._over = False
        """The loop has ended."""

        if not self._active:
            return
        available(port.settings.checksum)  # a wrong name is found here, not in a drain
        self._store = open_store(port.store_url)
        self._exchange = Exchange(rank=port.rank, world_size=port.world_size)
        self._staging = Staging()
        self._agreement = Agreement()
        self._cadence = Cadence(
            every_steps=port.settings.every_steps, every_s=port.settings.every_s
        )
        port.declare_size(self._parts.share_bytes(port.world_size))
        port.on_save(self._drain)
        port.on_quiesced(self._wait_for_save)
        port.on_close(self._finish)

    def restore(self) -> int:
        """The first step to train: after the one that the requeue record names, with everything
        as it was then; 0 on a fresh job. Collective.

        Raises:
            RestoreRefusedError: the recorded generation cannot be continued here.
            ManifestMismatchError: it is not what it was when it was committed.
        """
        target = self._port.restore_target
        if target is None or not self._active:
            return 0
        with refusals_reported(self._port, target):
            step = restore(self._port, self._store, self._exchange, self._parts, target)
        self._progress.restored(step)
        self._port.declare_size(self._parts.share_bytes(self._port.world_size))
        return step + 1

    @property
    def ended(self) -> bool:
        """What was restored was saved by ``session.close()`` of a loop that had ended by itself:
        what follows an epoch's last step was done, and the loader begins the next epoch."""
        return self._parts.ended

    def step_done(self, step: int) -> bool:
        """Call after every completed optimizer step, on every rank. True: leave the loop now.

        A drain is saved in here, and so is a periodic checkpoint that is due.

        Raises:
            NotRestoredError: the committed generation holds this step already.
        """
        step = index(step)
        self._progress.done(step)
        if self._port.step_done(step):
            self._progress.leaves()
            return True
        if self._active:
            must_agree = self._cadence.passed(step)
            if self._cadence.due(step):
                with self._port.between_steps():
                    self._periodic(step)
            elif must_agree:
                with self._port.between_steps():
                    self._agree(step)
        return False

    def close(self) -> None:
        """Wait for a save that is still being written."""
        self._wait_for_save()

    def _finish(self) -> None:
        """The loop ended by itself: its last step is saved like any other."""
        self._over = True
        step = self._progress.to_save_at_the_end()
        if step is not None:
            self._start(step, asynchronous=False)
        if self._progress.left:
            self._parts.let_go_of_workers()

    def _periodic(self, step: int) -> None:
        self._agree(step)
        self._start(step, asynchronous=self._port.settings.asynchronous)

    def _start(self, step: int, *, asynchronous: bool) -> None:
        """Start the save that is due at this step. Never raises: a failed save is reported."""
        port = self._port
        generation = periodic_id(epoch=port.epoch, step=step, restart=port.restart)
        self._progress.saved(step)
        port.report_save_began(generation, step)
        save = self._begin(generation, step, copy=asynchronous)
        if save is not None and asynchronous:
            save.wait_staged()
        elif save is not None:
            save.wait_done()

    def _drain(self, order: SaveOrder) -> None:
        """The save of a drain: held at the stop step, so the state is not copied for it."""
        if reason := self._progress.misses(order.step):
            self._port.report_save_failed(order.generation_id, reason)
            return
        save = self._begin(order.generation_id, order.step, copy=False)
        if save is not None:
            save.wait_done()
            self._wait_for_save()

    def _begin(self, generation: str, step: int, *, copy: bool) -> RankSave | None:
        """One save at a time: waits for the one before. None: reported as failed."""
        self._wait_for_save()
        if self._save is not None:
            reason = f"the save of {self._save.generation_id} was given up and is still stuck"
            self._port.report_save_failed(generation, reason)
            return None
        state: dict[str, Any] | Exception
        try:
            state = self._parts.capture(rank=self._port.rank, step=step, ended=self._over)
        except Exception as error:  # whatever a part's state_dict() may raise
            state = error
        self._save = save = RankSave(
            self._port,
            self._store,
            self._exchange,
            self._staging,
            self._agreement,
            generation_id=generation,
            state=state,
            copy=copy,
            compare=self._port.world_size > 1 and not self._compared,
        )
        self._compared = True
        save.start()
        return save

    def _wait_for_save(self) -> None:
        save = self._save
        if save is None:
            return
        save.wait_done()
        if save.over:
            self._save = None
            if save.saved_bytes is not None:
                self._port.declare_size(save.saved_bytes)

    def _agree(self, step: int) -> None:
        """When the next save by time is due. Without agreement there is none."""
        self._wait_for_save()  # it uses the same group
        try:
            if self._save is not None:
                raise SaveFailedError("the group is in use by a save that is stuck")
            self._cadence.agree(step, self._exchange)
        except SaveFailedError:
            self._cadence = Cadence(every_steps=self._port.settings.every_steps, every_s=0)
