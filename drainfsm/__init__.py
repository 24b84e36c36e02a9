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

from drainfsm.lazy import lazy_names

__all__ = ["Checkpoint", "OwnCheckpoint", "Session", "__version__", "attach", "errors"]

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without the time that importing typing takes
if TYPE_CHECKING:
    from drainfsm import errors
    from drainfsm.checkpoint import Checkpoint, OwnCheckpoint
    from drainfsm.session import Session
    from drainfsm.version import __version__
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "Checkpoint": "drainfsm.checkpoint",
            "OwnCheckpoint": "drainfsm.checkpoint",
            "Session": "drainfsm.session",
            "__version__": "drainfsm.version",
            "errors": "drainfsm.errors",
        },
    )


def attach(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_world_size: int | None = None,
    incarnation: str = "",
) -> Session:
    """This rank's session with the agent on its node; call it once, before training.

    Under torchrun, mpirun and srun the arguments come from the environment. Without an agent the
    session does nothing, and training runs as if it were not there.

    ``incarnation``: under a launcher that starts the ranks again after a failure, a name that is
    the same on all of them, and another one each time.

    Raises:
        AgentUnreachableError: there should be an agent, but it does not answer.
        ConfigError: the agent cannot take this rank; the message says why.
    """
    from drainfsm.runtime.rank.attach import attach_session
    from drainfsm.session import Session

    return Session(
        attach_session(
            rank=rank,
            world_size=world_size,
            local_world_size=local_world_size,
            incarnation=incarnation,
        )
    )


if "DRAINFSM_SOCKET" in os.environ:  # under an agent; elsewhere an import has no effect
    from drainfsm.runtime.rank.shield import shield_spawned_child

    shield_spawned_child()
