"""What a training script sees of drainfsm: the session of one rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Protocol, TypeAlias

from drainfsm.errors import ConfigError
from drainfsm.runtime.rank.session import RankSession

if TYPE_CHECKING:
    from torch import Generator, nn
    from torch.optim import Optimizer

    from drainfsm.checkpoint import Checkpoint, OwnCheckpoint
    from drainfsm.checkpoint.own_files import WrittenFiles


class Stateful(Protocol):
    """Anything with a state dict that can be saved and loaded: schedulers, data loaders."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


Part: TypeAlias = "nn.Module | Optimizer | Generator | Stateful"
"""What ``Session.checkpoint`` can save besides the model and its optimizer."""


class Session:
    """One rank's connection to the agent on its node; ``drainfsm.attach()`` makes it.

    Without an agent every method works, and training goes on as if it were not there.
    """

    def __init__(self, rank_session: RankSession) -> None:
        self._rank_session = rank_session
        self.rank: int = rank_session.rank
        self.world_size: int = rank_session.world_size
        self.job_id: str = rank_session.job_id
        """Empty: there is no agent."""

        self.epoch: int = rank_session.epoch
        """Rises with every attempt of the job; 0: there is no agent."""

    @property
    def draining(self) -> bool:
        """A drain is on: this rank is held, runs to the stop step, or is about to leave."""
        return self._rank_session.draining

    @property
    def preempted(self) -> bool:
        """A drain has ended the training loop: ``step_done`` has answered True."""
        return self._rank_session.preempted

    @property
    def last_step(self) -> int:
        """The last completed step; -1: none yet. After a restore, the restored one."""
        return self._rank_session.last_step

    def step_done(self, step: int) -> bool:
        """Call after every completed optimizer step, on every rank. True: leave the loop now.

        Jobs that save by ``checkpoint`` call the method of that name of the checkpoint instead.
        """
        return self._rank_session.step_done(step)

    def phase(self, name: str, expected_s: float | None = None) -> AbstractContextManager[None]:
        """Announce work outside the step loop (``eval``, ``compile`` …): ``with session.phase(…)``.

        A notice is then answered at once, instead of waiting for a step that does not end.
        ``expected_s``: how long it may take; what it took before is known.
        """
        return self._rank_session.phase(name, expected_s)

    def checkpoint(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        scheduler: Stateful | Sequence[Stateful] | None = None,
        loader: Stateful | Sequence[Stateful] | None = None,
        parts: Mapping[str, Part | Sequence[Part]] | None = None,
        **more: Never,
    ) -> Checkpoint:
        """A checkpoint that saves and restores these parts of the training state, with torch.

        Collective: every rank makes one, after ``init_process_group`` if there are several.
        ``parts``: everything else that must come back, by names of your own.

        Raises:
            ConfigError: a part cannot be saved, torch is missing, or torch.distributed has other
                ranks.
        """
        if find_spec("torch") is None:
            raise ConfigError(
                "session.checkpoint(...) needs torch: install it with `pip install "
                "'drainfsm[torch]'`, or save by functions of your own (session.own_checkpoint)"
            )
        from drainfsm.checkpoint import Checkpoint

        if more:
            warnings.warn(
                f"session.checkpoint(...) got {', '.join(more)}: pass what is not a model, "
                "optimizer, scheduler or loader as parts={'name': …}; keywords of other names are "
                "an error in the next release",
                DeprecationWarning,
                stacklevel=2,
            )
        return Checkpoint(
            self._rank_session,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            loader=loader,
            parts={**(parts or {}), **more},
        )

    def own_checkpoint(
        self,
        *,
        save: Callable[[Path, int], WrittenFiles],
        load: Callable[[Path, int], object],
        shared: bool = False,
        saver: str = "own",
        save_bytes: float = 0,
    ) -> OwnCheckpoint:
        """A checkpoint for a job that writes its files itself; torch is not needed.

        ``save(directory, step)`` writes this rank's files, ``load(directory, step)`` reads them
        back. ``shared``: one directory for all ranks. ``saver``: name of the format.
        ``save_bytes``: about how much this rank writes.

        Raises:
            ConfigError: the store is no file system, or a setting does not go with this.
        """
        from drainfsm.checkpoint import OwnCheckpoint

        return OwnCheckpoint(
            self._rank_session,
            save=save,
            load=load,
            shared=shared,
            saver=saver,
            save_bytes=save_bytes,
        )

    def close(self) -> None:
        """Finish the save that is in flight, and report no more. The process may go on as long as
        it likes, unless a drain ends it."""
        self._rank_session.close()
