"""The process around an agent: its exit waits for nothing that may hang."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from drainfsm.errors import DrainfsmError
from drainfsm.runtime.agent.agent import run_agent
from drainfsm.runtime.agent.start import FAILED, exit_code_of
from drainfsm.runtime.config import RunConfig, secret_variables
from drainfsm.runtime.output import PrintedLines, printed_logs, repair_standard_streams

log = logging.getLogger("drainfsm.agent")


def run_process(config: RunConfig, *, beside: Callable[[], None] | None = None) -> NoReturn:
    """Run the agent, and end this process with its exit code. ``beside`` starts what only looks on:
    it returns at once, and nobody waits for what it has started.

    A thread that hangs in a store, or in a name lookup, would keep an ordinary exit waiting.
    """
    repair_standard_streams()
    for name in secret_variables(os.environ):
        del os.environ[name]  # no child needs it: not the job, not a cordon command
    fields: dict[str, object] = {"job": config.job, "node_rank": config.node_rank}
    with printed_logs(log_format=config.log_format, fields=fields) as printer:
        # Other output (an adapter's print, the interpreter's last words) must not block either.
        sys.stdout = sys.stderr = PrintedLines(printer)
        if beside is not None:
            beside()
        exit_code = _run(config, fields)
    os._exit(exit_code)


def _run(config: RunConfig, fields: dict[str, object]) -> int:
    try:
        return asyncio.new_event_loop().run_until_complete(run_agent(config, log_fields=fields))
    except DrainfsmError as error:
        log.error("%s", error)
        return exit_code_of(error)
    except Exception:
        log.exception("a bug, please report it")
        return FAILED
