"""Event-sourced drain lifecycles for distributed training jobs.

session = drainfsm.attach()
checkpoint = session.checkpoint(model=model, optimizer=optimizer)
for step in range(checkpoint.restore(), steps):
    train_one(step)
    if checkpoint.step_done(step):
        break
session.close()
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drainfsm.checkpoint import Checkpoint, OwnCheckpoint
    from drainfsm.runtime.rank.session import Session

__all__ = ["attach"]


def attach(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_world_size: int | None = None,
) -> Session[Checkpoint]:
    """This rank's session with the agent on its node; call it once, before training.

    Under torchrun the arguments come from the environment. Without an agent the session does
    nothing, and training runs as if it were not there.

    Raises:
        AgentUnreachableError: there should be an agent, but it does not answer.
        ConfigError: the agent cannot take this rank; the message says why.
    """
    from drainfsm.runtime.rank.attach import attach_session

    return attach_session(
        rank=rank,
        world_size=world_size,
        local_world_size=local_world_size,
        make_checkpoint=_make_checkpoint,
        make_own=_make_own_checkpoint,
    )


def _make_checkpoint(session: Session[Checkpoint], **parts: Any) -> Checkpoint:
    from drainfsm.checkpoint import Checkpoint

    return Checkpoint(session, **parts)


def _make_own_checkpoint(session: Session[Checkpoint], **hooks: Any) -> OwnCheckpoint:
    from drainfsm.checkpoint.own import OwnCheckpoint

    return OwnCheckpoint(session, **hooks)


if "DRAINFSM_SOCKET" in os.environ:  # under an agent; elsewhere an import has no effect
    from drainfsm.runtime.rank.shield import shield_spawned_child

    shield_spawned_child()
