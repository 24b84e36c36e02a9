"""The process around an agent: its exit waits for nothing that may hang."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import NoReturn

from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.errors import ConfigError, DrainfsmError, StoreUnreachableError
from drainfsm.runtime.agent.agent import run_agent, warn
from drainfsm.runtime.config import RunConfig

FAILED, MISUSED = 1, 2
"""Exit codes of an agent that could not run the command at all."""


def run_process(config: RunConfig) -> NoReturn:
    """Run the agent, and end this process with its exit code.

    A thread that hangs in a store, or in a name lookup, would keep an ordinary exit waiting.
    """
    loop = asyncio.new_event_loop()
    try:
        exit_code = loop.run_until_complete(run_agent(config))
    except ConfigError as error:
        warn(str(error))
        exit_code = MISUSED
    except StoreUnreachableError as error:
        warn(f"{error}; nothing was started, exit code {EX_TEMPFAIL} asks for another try")
        exit_code = EX_TEMPFAIL
    except DrainfsmError as error:
        warn(str(error))
        exit_code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
