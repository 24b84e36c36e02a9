"""``Stateful`` objects, saved by ``torch.distributed.checkpoint`` itself.

    checkpoint = drain(session, {"app": app}, loader=loader)  # session = drainfsm.attach()
    for step in range(checkpoint.restore(), steps):
        ...
        if checkpoint.step_done(step):                        # after every optimizer step
            break

and ``session.close()`` after the loop. ``app`` has ``state_dict`` and ``load_state_dict``, as those
of torchtitan's and torchft's examples have. A generation holds what ``dcp.save`` writes of them;
beside that stand each rank's random state and the position of ``loader``, since
``torch.distributed.checkpoint`` keeps what is no tensor once for all ranks.

With a model and an optimizer at hand, ``session.checkpoint(model=…, optimizer=…)`` needs no such
objects, and writes while training goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from drainfsm.checkpoint import OwnCheckpoint
from drainfsm.checkpoint.objects import check_object
from drainfsm.frameworks._engine_files import EngineFiles
from drainfsm.session import Session, Stateful

__all__ = ["drain"]

SAVER = "stateful"
DIRECTORY = "dcp"


def drain(
    session: Session,
    state: Mapping[str, Stateful],
    *,
    save_bytes: int = 0,
    **objects: Stateful | None,
) -> OwnCheckpoint:
    """Collective: every rank calls it, after ``init_process_group``.

    ``save_bytes``: about what this rank writes, for the decision of a job that has never saved.
    ``objects``: what each rank has for itself: ``loader=…``.

    Raises:
        ConfigError: something has no ``state_dict``.
    """
    for name, part in state.items():
        check_object(name, part)
    whole: dict[str, Any] = dict(state)
    files = EngineFiles(
        session,
        write=lambda top: save(whole, checkpoint_id=_in(top), no_dist=session.world_size == 1),
        read=lambda top: load(whole, checkpoint_id=_in(top), no_dist=session.world_size == 1),
        objects=objects,
    )
    return files.checkpoint(saver=SAVER, save_bytes=save_bytes)


def _in(top: Path) -> Path:
    return top / DIRECTORY
