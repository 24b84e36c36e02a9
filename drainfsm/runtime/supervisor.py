"""Runs a command that wants to come back, and starts it again when it does, or when it is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

import msgspec

from drainfsm.core.backoff import backoff_s
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.runtime import early_signals
from drainfsm.runtime.liveness import Sign, silence
from drainfsm.runtime.processes.exit_codes import describe_exit, shell_code

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What an agent takes as a notice. The capacity that goes is ours too: no restart after it."""

KILL_WAIT_S = 10.0
"""For a killed agent to be gone. The next attempt fences it, whether or not it is."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    restarts_max: int = 10
    """In a row, of attempts that lived shorter than ``settled_s``."""

    backoff_s: float = 1.0
    """Before the first restart in a row; doubles up to ``backoff_s_max``."""

    backoff_s_max: float = 60.0
    settled_s: float = 300.0
    silence_s: float = 20.0

    def pause_s(self, restart: int) -> float:
        """Before the so many-th restart in a row, from 1."""
        return backoff_s(restart, first_s=self.backoff_s, longest_s=self.backoff_s_max)


class Supervisor:
    """One command, attempt after attempt. The claim of each fences the one before."""

    def __init__(
        self,
        command: Sequence[str],
        policy: Policy,
        *,
        look: Callable[[], Sign | None],
        say: Callable[[str], None],
    ) -> None:
        self._command = command
        self._policy = policy
        self._look = look
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._told_to_stop = asyncio.Event()

    async def run(self) -> int:
        """The exit code of the last attempt, as a shell would see it."""
        loop = asyncio.get_running_loop()
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup
        forwarded = [one for one in FORWARDED if not (ignored and one is signal.SIGHUP)]
        for number in forwarded:
            loop.add_signal_handler(number, self._forward, number)
        if early_signals.taken_over(number.name for number in forwarded):
            return EX_TEMPFAIL  # the capacity goes, and nothing was started on it
        try:
            return await self._run()
        finally:
            for number in forwarded:
                loop.remove_signal_handler(number)

    async def _run(self) -> int:
        loop, policy, in_a_row = asyncio.get_running_loop(), self._policy, 0
        while True:
            began = loop.time()
            code = await self._attempt()
            if self._told_to_stop.is_set() or not wants_restart(code):
                return shell_code(code)
            settled = loop.time() - began >= policy.settled_s
            in_a_row = 1 if settled else in_a_row + 1
            how = describe_exit(shell_code(code))
            if in_a_row > policy.restarts_max:
                self._say(f"the attempt {how}; {policy.restarts_max} restarts in a row came to it")
                return shell_code(code)
            pause_s = policy.pause_s(in_a_row)
            self._say(f"the attempt {how}; the next one starts in {pause_s:g} s")
            if await self._stopped_within(pause_s):
                return shell_code(code)

    async def _attempt(self) -> int:
        before = self._look()
        process = await asyncio.create_subprocess_exec(*self._command, start_new_session=True)
        self._process = process
        if self._told_to_stop.is_set():  # while it was being started
            process.send_signal(signal.SIGTERM)
        ended = asyncio.ensure_future(process.wait())
        silent = asyncio.ensure_future(
            silence(self._look, since=before, silence_s=self._policy.silence_s, needs_sign=True)
        )
        try:
            await asyncio.wait({ended, silent}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result()
            self._say(f"no sign of life for {self._policy.silence_s:g} s: the attempt is lost")
            process.kill()
            await asyncio.wait({ended}, timeout=KILL_WAIT_S)
            return -signal.SIGKILL
        finally:
            self._process = None
            silent.cancel()
            ended.cancel()

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._told_to_stop.wait()
        except TimeoutError:
            return False
        return True

    def _forward(self, number: signal.Signals) -> None:
        self._told_to_stop.set()
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(number)


def wants_restart(code: int) -> bool:
    """``code`` as Python gives it: negative for a signal, by which only a loss ends an agent."""
    return code == EX_TEMPFAIL or code < 0
