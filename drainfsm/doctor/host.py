"""This machine: room for journals and for staging, and the place of the agent's socket."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from drainfsm.checkpoint.memory import free_host_bytes
from drainfsm.doctor.findings import Finding, Setup, error, right, warning
from drainfsm.doctor.storage import check_mount
from drainfsm.errors import ConfigError
from drainfsm.policy.plan_text import size
from drainfsm.runtime.liveness import sign_of_life
from drainfsm.runtime.paths import socket_dir

JOURNAL_BYTES_MIN = 256 << 20
"""Weeks of a job's decisions; a full disk costs a drain time."""


def check_host(setup: Setup) -> Iterator[Finding]:
    yield from _check_state_dir(setup)
    yield from _check_memory(setup)
    try:
        socket_dir()
    except ConfigError as problem:
        yield error(
            "socket",
            str(problem),
            why="ranks could not attach",
            fix="export XDG_RUNTIME_DIR=$(mktemp -d)",
        )


def _check_state_dir(setup: Setup) -> Iterator[Finding]:
    there = setup.state_dir
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as problem:
        yield error(
            "state dir",
            f"nothing can be written in {there}: {problem.strerror}",
            why="no decision could be put on record, so the job would not start",
            fix="drainfsm run --state-dir DIR …, on a local disk that this user may write",
        )
        return
    yield from check_mount("state dir", there)
    free = _free(there)
    if free < JOURNAL_BYTES_MIN:
        yield warning(
            "state dir",
            f"{size(free)} are free for journals in {there}",
            why="decisions would go to the store instead, which is slower",
            fix=f"df -h {there}",
        )
    else:
        yield right("state dir", f"{size(free)} are free in {there}")
    if sign_of_life(setup.state_dir, job=setup.job) is not None:
        yield right("attempts", "the job has run here before; nothing of it was touched")


def _free(path: Path) -> int:
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def _check_memory(setup: Setup) -> Iterator[Finding]:
    share = -(-setup.save_bytes // setup.node_count)
    free = free_host_bytes()
    if not share or free is None:
        return
    if free < share:
        yield error(
            "memory",
            f"{size(free)} are free, and this node's share of a checkpoint is {size(share)}",
            why="a save that is staged in host memory would fail for want of it",
            fix="raise the container's memory limit, or save from the device "
            "(`asynchronous = false` in [checkpoint])",
        )
    else:
        yield right("memory", f"{size(free)} are free, {size(share)} are staged")
