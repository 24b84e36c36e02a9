"""Runs a command that wants to come back, and starts it again when it does, or when it is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.runtime import early_signals
from drainfsm.runtime.liveness import Sign, silence
from drainfsm.runtime.processes.exit_codes import describe_exit, shell_code

NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FORWARDED = (*NOTICES, signal.SIGQUIT)
"""Signals that an agent takes as a notice, and the one that ends it at once (Ctrl-\\). The capacity
is ours too: no restart after one."""

KILL_WAIT_S = 10.0
"""For a killed agent to be gone. The next attempt fences it in any case."""


class Next(NamedTuple):
    """What follows an attempt that has ended."""

    pause_s: float | None
    """Before the next one; None: there is none."""

    reason: str


class Supervisor:
    """One command, attempt after attempt. The claim of each fences the one before."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        after: Callable[[int, float], Awaitable[Next]],
        silence_s: float,
        look: Callable[[], Sign | None],
        say: Callable[[str], None],
    ) -> None:
        """``after``: decides what follows, by the exit code (negative: a signal) and the seconds
        that the attempt lived. ``silence_s``: an attempt without a sign of life for so long is
        lost."""
        self._command = command
        self._after = after
        self._silence_s = silence_s
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
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            code = await self._attempt()
            if self._told_to_stop.is_set():
                return shell_code(code)
            then = await self._after(code, loop.time() - began)
            how = describe_exit(shell_code(code))
            if then.pause_s is None:
                self._say(f"the attempt {how}; nothing is started again: {then.reason}")
                return shell_code(code)
            self._say(
                f"the attempt {how}; the next one starts in {then.pause_s:g} s: {then.reason}"
            )
            if await self._stopped_within(then.pause_s):
                return shell_code(code)

    async def _attempt(self) -> int:
        before = self._look()
        process = await asyncio.create_subprocess_exec(*self._command, start_new_session=True)
        self._process = process
        if self._told_to_stop.is_set():  # while it was being started
            process.send_signal(signal.SIGTERM)
        ended = asyncio.ensure_future(process.wait())
        silent = asyncio.ensure_future(
            silence(self._look, since=before, silence_s=self._silence_s, needs_sign=True)
        )
        try:
            await asyncio.wait({ended, silent}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result()
            self._say(f"no sign of life for {self._silence_s:g} s: the attempt is lost")
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
