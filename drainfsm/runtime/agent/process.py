"""The process around an agent: its exit waits for nothing that may hang."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import NoReturn

from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.errors import (
    ConfigError,
    DrainfsmError,
    OtherJobsStoreError,
    StoreUnreachableError,
)
from drainfsm.runtime.agent.agent import run_agent
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.output import start_output

log = logging.getLogger("drainfsm.agent")

FAILED, MISUSED = 1, 2
"""Exit codes of an agent that could not run the command at all."""


def run_process(config: RunConfig) -> NoReturn:
    """Run the agent, and end this process with its exit code.

    A thread that hangs in a store, or in a name lookup, would keep an ordinary exit waiting.
    """
    printer = start_output(log_format=config.log_format, job=config.job, node_rank=config.node_rank)
    loop = asyncio.new_event_loop()
    try:
        exit_code = loop.run_until_complete(run_agent(config))
    except (ConfigError, OtherJobsStoreError) as error:
        log.error("%s", error)
        exit_code = MISUSED
    except StoreUnreachableError as error:
        log.error("%s; nothing was started, exit code %s asks for another try", error, EX_TEMPFAIL)
        exit_code = EX_TEMPFAIL
    except DrainfsmError as error:
        log.error("%s", error)
        exit_code = FAILED
    except Exception:
        log.exception("a bug, please report it")
        exit_code = FAILED
    printer.close()
    os._exit(exit_code)
