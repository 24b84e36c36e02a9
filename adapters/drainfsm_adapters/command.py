"""Cordon and requeue by commands of your own, for platforms that have no adapter.

    [adapters.command]
    cordon = "kubectl cordon $DRAINFSM_NODES"
    left = "my-scheduler resubmit $DRAINFSM_JOB"

The commands run in ``/bin/sh`` with the names of the nodes, the job and the epoch in the
environment. This adapter hears no notices.
"""

from __future__ import annotations

import asyncio
import os
import socket

from drainfsm.adapter import Adapter, AdapterContext, Departure
from drainfsm.errors import ConfigError

OPTIONS = ("cordon", "left")
OUTPUT_CHARACTERS_MAX = 500


class CommandFailedError(Exception):
    """The command exited with another code than 0, or ran out of its time."""


class CommandAdapter:
    """Runs the configured commands; an empty one does nothing."""

    def __init__(self, context: AdapterContext) -> None:
        unknown = sorted(set(context.options) - set(OPTIONS))
        if unknown:
            raise ConfigError(f"[adapters.command]: unknown key {unknown[0]}; known: {OPTIONS}")
        self._context = context

    async def cordon(self, nodes: tuple[str, ...], *, timeout_ms: int) -> str:
        return await self._run("cordon", nodes, timeout_ms=timeout_ms)

    async def left(self, departure: Departure) -> str:
        requeue, timeout_ms = departure.requeue, departure.timeout_ms
        return await self._run("left", (), timeout_ms=timeout_ms, requeue=requeue)

    async def _run(
        self, what: str, nodes: tuple[str, ...], *, timeout_ms: int, requeue: bool = False
    ) -> str:
        command = self._context.options.get(what, "")
        if not command:
            return f"{what}: no command is configured"
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            env={
                **os.environ,
                "DRAINFSM_JOB": self._context.job_id,
                "DRAINFSM_EPOCH": str(self._context.epoch()),
                "DRAINFSM_NODES": " ".join(nodes or (this_node(),)),
                "DRAINFSM_REQUEUE": "1" if requeue else "0",
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), timeout_ms / 1_000)
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        text = output.decode(errors="replace").strip()[:OUTPUT_CHARACTERS_MAX]
        if process.returncode != 0:
            raise CommandFailedError(f"{what}: exit code {process.returncode}: {text}")
        return text or f"{what}: done"


def this_node() -> str:
    """The platform's name for this machine, for a notice that names none: the node of a pod
    (``NODE_NAME``, set from ``spec.nodeName``) or of a Slurm step, else the host's name."""
    return os.environ.get("NODE_NAME") or os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def create(context: AdapterContext) -> Adapter:
    """The adapter ``command``."""
    return CommandAdapter(context)
