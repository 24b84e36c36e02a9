"""The job's command on this node: started shielded from signals, watched, and ended for sure."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from drainfsm.errors import ConfigError
from drainfsm.runtime.config import secret_variables
from drainfsm.runtime.processes import launch
from drainfsm.runtime.processes.descriptors import inherited_descriptors
from drainfsm.runtime.processes.exit_codes import shell_code
from drainfsm.runtime.processes.launchers import handles_signals, is_launcher
from drainfsm.runtime.processes.proc import (
    Process,
    a_child_has_ended,
    catches,
    hears,
    job_processes,
    name_of,
    process,
    reap,
)
from drainfsm.runtime.wire.environment import SIGNALS_VARIABLE

PR_SET_CHILD_SUBREAPER = 36
KILL_PAUSE_S = 0.02
KILL_S_MAX = 5.0
"""A process in an uninterruptible wait of the kernel cannot be killed: it is left behind."""

TORCHRUN = {
    # torchrun's own handling of SIGTERM would end the ranks within its 30 s, whatever the deadline;
    # its flags read PET_<FLAG>, and a flag's default overwrites TORCHELASTIC_SIGNALS_TO_HANDLE.
    "PET_SIGNALS_TO_HANDLE": "SIGHUP",
}
TORCHRUN_DEFAULTS = {
    # How long torchrun's agent waits for its workers at its own end: they ignore its SIGTERM, so
    # waiting longer would be in vain. Once a worker has failed it does not count: there
    # torch 2.13 (elastic/agent/server/local_elastic_agent.py, _stop_workers) always waits 30 s.
    "PET_SHUTDOWN_TIMEOUT": "5",
}


def become_subreaper() -> None:
    """Orphans of the job become children of this process, where they are found and ended."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Job:
    """One run of the command."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        signals: Sequence[str],
        others: Set[int] = frozenset(),
        stdout: int | None = None,
    ) -> None:
        """``others``: children of this process in sessions of their own that are not the job's;
        there may be more of them later. ``stdout``: where its output goes; None: where ours does.
        """
        self._command = command
        self._signals = signals
        self._popen: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()
        self._others = others
        self._stdout = stdout
        self._deaf = is_launcher(command)
        """Started with the signals of a notice ignored."""

        self._adopted: dict[int, int] = {}
        """Ranks: process id to pidfd."""

    def start(self, variables: Mapping[str, str]) -> None:
        """Raises: ConfigError: the command cannot be started."""
        signals = ",".join(self._signals)
        environment = {
            **TORCHRUN_DEFAULTS,
            **os.environ,
            **TORCHRUN,
            SIGNALS_VARIABLE: signals,
            **variables,
        }
        for name in secret_variables(environment):
            del environment[name]
        ignored = signals if self._deaf else ""
        blocked = signals if handles_signals(self._command) else ""
        shim = [sys.executable, "-I", "-S", str(Path(launch.__file__)), str(os.getpid())]
        shim.append(str(inherited_descriptors()))
        try:
            self._popen = subprocess.Popen(
                [*shim, ignored, blocked, *self._command],
                env=environment,
                stdout=self._stdout,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"cannot start {self._command[0]!r}: {error}") from error
        pidfd = os.pidfd_open(self._popen.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit, pidfd)

    def adopt(self, pid: int) -> None:
        """A rank that has attached is the job's, also where a daemon has started it (srun's
        slurmstepd, an orted, Ray)."""
        if pid not in (0, os.getpid(), *self._adopted_alive()):
            with contextlib.suppress(OSError):
                self._adopted[pid] = os.pidfd_open(pid)

    def _adopted_alive(self) -> list[int]:
        """Those whose process is still the one that attached."""
        poll = select.poll()
        for pidfd in self._adopted.values():
            poll.register(pidfd, select.POLLIN)
        ended = {pidfd for pidfd, _ in poll.poll(0)}
        for pid in [pid for pid, pidfd in self._adopted.items() if pidfd in ended]:
            os.close(self._adopted.pop(pid))
        return list(self._adopted)

    def _on_exit(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        if self._popen is not None:
            self._popen.wait()
        self._ended.set()

    @property
    def pid(self) -> int | None:
        return None if self._popen is None else self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """Of the command itself, as a shell would see it; None: it runs, or never ran."""
        code = None if self._popen is None else self._popen.returncode
        return None if code is None else shell_code(code)

    async def wait(self) -> None:
        """Until the command itself has ended."""
        await self._ended.wait()

    async def wait_for_the_rest(self, *, timeout_s: float) -> bool:
        """Until its children have ended as well. False: some have not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._left():
                    await asyncio.sleep(KILL_PAUSE_S)
                return True
        return False

    def forward(self, number: signal.Signals) -> int:
        """Send it to the topmost processes that have a handler for it, which are in charge of those
        below them; if there are none, to all. Returns to how many.

        A process that ignores it only because its launcher was started that way ends as it would
        by itself: nobody there has anything to do first, and it would go on until the deadline.
        """
        found = self._found()
        handlers = [one for one in found if catches(one.pid, number)]
        below = {one.pid for one in found if _is_below(one, handlers, found)}
        receivers = [one for one in handlers if one.pid not in below] or found
        for one in receivers:
            in_vain = self._deaf and not hears(one.pid, number)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one.pid, signal.SIGKILL if in_vain else number)
        return len(receivers)

    async def kill(self, *, timeout_s: float = KILL_S_MAX) -> bool:
        """SIGKILL to every process of the job until none is left. False: one cannot be killed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while left := self._left():
                    for pid in left:
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.kill(pid, signal.SIGKILL)
                    await asyncio.sleep(KILL_PAUSE_S)
                return True
        return False

    def kill_now(self) -> None:
        """One round, without waiting: the last resort."""
        for pid in self._left():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def names(self) -> list[str]:
        """The processes that live, for a message."""
        return [f"{name_of(one.pid)} (pid {one.pid})" for one in self._found()]

    def reap(self) -> None:
        """Wait for orphans that ended by themselves. Usually there are none, and /proc is not
        searched."""
        if a_child_has_ended():
            self._left()

    def _left(self) -> list[int]:
        """Processes that live, parents before their children."""
        return [one.pid for one in self._found()]

    def _found(self) -> list[Process]:
        if self._popen is None:
            return []
        found = job_processes(os.getpid(), others=self._others)
        reap(found, but=self._popen.pid)
        below = {one.pid for one in found}
        adopted = [process(pid) for pid in self._adopted_alive() if pid not in below]
        found += [one for one in adopted if one is not None]
        return [one for one in found if one.state != "Z"]


def _is_below(one: Process, above: Sequence[Process], found: Sequence[Process]) -> bool:
    """A process of ``above`` is its parent, or theirs."""
    parents, pids = {each.pid: each.parent for each in found}, {each.pid for each in above}
    parent = one.parent
    while parent in parents:
        if parent in pids:
            return True
        parent = parents[parent]
    return parent in pids
