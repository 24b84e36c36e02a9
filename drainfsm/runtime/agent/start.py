"""Before an attempt is claimed: checks everything that can be known to be wrong on this machine,
since a claim fences a healthy attempt elsewhere."""

from __future__ import annotations

import shutil

from msgspec.structs import replace

from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.errors import (
    BrokerError,
    ConfigError,
    DrainfsmError,
    OtherJobsStoreError,
    StartRefusedError,
    StoreUnreachableError,
)
from drainfsm.runtime import paths
from drainfsm.runtime.agent.stored_token import stored_token
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt import nats_server
from drainfsm.runtime.processes.descriptors import OWN_COUNT, allow_descriptors
from drainfsm.runtime.threads import in_thread
from drainfsm.runtime.wire import handshake
from drainfsm.runtime.wire import node_messages as n
from drainfsm.store import open_store

FAILED, MISUSED = 1, 2
"""Exit codes of an agent that could not run the command at all."""


def exit_code_of(error: DrainfsmError) -> int:
    """Exit code of an agent that the error keeps from running the command."""
    match error:
        case StartRefusedError(exit_code=exit_code):
            return exit_code
        case ConfigError() | OtherJobsStoreError():
            return MISUSED
        case StoreUnreachableError() | BrokerError():
            return EX_TEMPFAIL
        case _:
            return FAILED


def check_machine(config: RunConfig) -> None:
    """Raises: ConfigError: the command, the directory of the sockets, a TLS file or a file that is
    shown to the NATS server cannot be used, or too few files may be open."""
    command = config.command[0]
    if shutil.which(command) is None:
        raise ConfigError(f"command: there is no {command!r} here that can be executed")
    paths.socket_dir()
    if config.nnodes > 1:
        if config.node_rank == 0:
            allow_descriptors(config.nnodes + OWN_COUNT)
        handshake.server_tls(config)
        handshake.client_tls(config)
    if config.nats and config.node_rank == 0:
        nats_server(config).check()


async def with_token(config: RunConfig) -> RunConfig:
    """Raises:
    ConfigError: there is no store, or it cannot keep a token from others.
    StoreError: the store does not answer, or what it keeps is not a token.
    """
    if config.nnodes == 1 or config.token:
        return config
    token = await in_thread("token", lambda: _stored_token(config))
    return replace(config, token=token)


def _stored_token(config: RunConfig) -> str:
    store = open_store(config.store)
    store.create(parents=config.create_store)
    return stored_token(store, node_rank=config.node_rank)


def refusal_of(error: DrainfsmError) -> n.Refusal:
    """What the other nodes are told of it."""
    reason = error.reason if isinstance(error, StartRefusedError) else str(error)
    return n.Refusal(error=StartRefusedError.__name__, reason=reason, exit_code=exit_code_of(error))
