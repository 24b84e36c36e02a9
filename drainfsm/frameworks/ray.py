"""Ray Train: the worker group under drainfsm's agent.

    def train(session, config):       # session: as of drainfsm.attach()
        ...                           # the loop of any other job: session.checkpoint(...)

    TorchTrainer(drain(train), scaling_config=ScalingConfig(num_workers=2)).fit()

started by ``drainfsm run -- python train.py``, where ``ray.init("local")`` makes the job's cluster.
On several nodes each has an agent, the others' command being ``ray start --block``. The workers are
the agent's processes by way of Ray's daemons, and find its socket in their environment.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

import drainfsm
from drainfsm.errors import ConfigError
from drainfsm.frameworks._files import imported

__all__ = ["drain"]

Train = Callable[[drainfsm.Session, dict[str, Any]], Any]

SOCKET_VARIABLE = "DRAINFSM_SOCKET"
"""Set by the agent in everything that it starts."""


def drain(train: Train) -> Callable[[dict[str, Any]], Any]:
    """What to give to a trainer for ``train``, which gets a session before its config. The session
    is closed when it returns.

    Called in the driver. Where that has no agent, the workers need none either.
    """
    under_agent = bool(os.environ.get(SOCKET_VARIABLE))

    def train_loop_per_worker(config: dict[str, Any]) -> Any:
        session = _attach(under_agent=under_agent)
        result = train(session, config)
        session.close()  # after an error nothing is saved
        return result

    return train_loop_per_worker


def _attach(*, under_agent: bool) -> drainfsm.Session:
    """The session of this worker.

    Raises:
        ConfigError: the driver has an agent, and this node of Ray has none.
    """
    context = imported("ray.train", extra="ray").get_context()
    rank: int = context.get_world_rank()
    session = drainfsm.attach(
        rank=rank,
        world_size=context.get_world_size(),
        local_world_size=context.get_local_world_size(),
        incarnation=_incarnation(rank) if under_agent else "",
    )
    if under_agent and not session.job_id:
        raise ConfigError(
            f"the driver runs under `drainfsm run`, and the Ray node on {os.uname().nodename} was "
            'started without it: ray.init("local") makes a cluster of the job, or start each with '
            "`drainfsm run … -- ray start --block …`"
        )
    return session


def _incarnation(rank: int) -> str:
    """Of this worker group: Ray starts another one after a failure, if it is told to."""
    collective = imported("ray.train.collective", extra="ray")
    made = uuid.uuid4().hex if rank == 0 else None
    return str(collective.broadcast_from_rank_zero(made))
