"""``drainfsm watch``: jobs and drains on the terminal, as they happen."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from drainfsm.cli.logs import add_log_options, reader_of
from drainfsm.cli.options import Parser
from drainfsm.cli.settings import load_settings
from drainfsm.core.explain import explain
from drainfsm.core.text import printable
from drainfsm.errors import ConfigError, DrainfsmError

if TYPE_CHECKING:
    from rich.text import Text

    from drainfsm.core.records import Record
    from drainfsm.views.screen import Selection
    from drainfsm.views.watch import Reader

USAGE = """watch [--job NAME] [--nats URL | --state-dir DIR | --file PATH] [--once] [--json]"""

EPILOG = """\
Follows the stream of --nats (all jobs, or that of --job); else the journals of --job in
--state-dir, or a file that grows. Shows the jobs, the nearest deadline first; for the chosen one
the window (spent, needed by phase, left), the ranks with the late ones named, sources that cannot
tell, and its events. If the server is away, watch waits for it, and shows how old the view is.

Keys: arrows or j and k choose, e explains, f filters the events, q quits. --once prints the view
once and ends; --json prints the states as JSON lines, once or (without --once) at every change."""

FRAME_S = 0.25
CHANGES_S = 1.0
PLAIN_WIDTH, PLAIN_HEIGHT = 100, 40
UP, DOWN = ("k", "\x1b[A", "\x1bOA"), ("j", "\x1b[B", "\x1bOB")
DUMB = ("dumb", "unknown")
"""Terminals that cannot be drawn on: there the view is printed at every change."""

PAGES = {"\x1b[5~": -1, "\x1b[6~": 1, " ": 1}
KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
"""Several keys may come at once, over a slow line."""


def parser() -> Parser:
    made = Parser("watch", "Watch jobs and drains.", usage=USAGE, epilog=EPILOG)
    add_log_options(made)
    made.add_argument("--once", action="store_true", help="print the view once, and end")
    made.add_argument("--json", action="store_true", help="states as JSON lines")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "watch needs rich: install it with `pip install 'drainfsm[dashboard]'`"
        ) from error
    return asyncio.run(_watch(arguments))


def _reader(arguments: argparse.Namespace) -> Reader:
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    job = None if settings.given("job") is None else settings.job
    if arguments.file is None and not settings.nats and job is None:
        raise ConfigError("watch: give --nats for all jobs, or --job for the journals here")
    return reader_of(settings, arguments.file, job=job, follows=not arguments.once)


async def _watch(arguments: argparse.Namespace) -> int:
    reader = _reader(arguments)
    if arguments.once:
        await reader.once()
        _print(reader, as_json=arguments.json)
        return 0
    running = asyncio.ensure_future(reader.run())
    try:
        if not arguments.json and sys.stdout.isatty() and os.environ.get("TERM") not in DUMB:
            return await _Terminal(reader).run(running)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHANGES_S):
                    await reader.changed.wait()
            if running.done():
                running.result()
            if _nobody_reads():
                raise BrokenPipeError
            if reader.changed.is_set():
                reader.changed.clear()
                _print(reader, as_json=arguments.json)
                await asyncio.sleep(CHANGES_S)
    finally:
        running.cancel()


def _nobody_reads() -> bool:
    """The program behind the pipe (`| head`) has enough; without changes no write would tell."""
    pipe = select.poll()
    try:
        pipe.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLNVAL) for _, event in pipe.poll(0))
    except (OSError, ValueError):
        return True


def _print(reader: Reader, *, as_json: bool) -> None:
    from drainfsm.views.screen import Selection, plain

    if as_json:
        for status in reader.projection.statuses(now_unix_ms=reader.clock()):
            sys.stdout.buffer.write(msgspec.json.encode(status) + b"\n")
        sys.stdout.buffer.flush()
        return
    lines = _lines(reader, Selection(), width=PLAIN_WIDTH, height=PLAIN_HEIGHT)
    print(plain(lines[:-1]), flush=True)


def _lines(reader: Reader, selection: Selection, *, width: int, height: int) -> list[Text]:
    from drainfsm.views.screen import Feed, screen

    feed = Feed(
        source=printable(reader.where),
        stale_since_unix_ms=reader.stale_since_unix_ms,
        error=reader.error,
    )
    return screen(
        reader.projection,
        feed=feed,
        selection=selection,
        now_unix_ms=reader.clock(),
        width=width,
        height=height,
    )


class _Terminal:
    """The full screen: redrawn a few times a second, and at every key."""

    def __init__(self, reader: Reader) -> None:
        from rich.console import Console

        from drainfsm.views.screen import Selection

        self._reader = reader
        self._console = Console()
        self._selection = Selection()
        self._explained: list[str] | None = None
        self._top = 0
        self._reading: asyncio.Task[None] | None = None
        self._key = asyncio.Event()
        self._over = False
        self._signal: signal.Signals | None = None
        """That has come, and has not had its effect yet."""

    async def run(self, reading: asyncio.Future[None]) -> int:
        """Until somebody quits, or nothing can be read any more. However it ends, and while it is
        suspended, the terminal is as it was before."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            loop.add_signal_handler(number, self._signalled, number)
        try:
            while not self._over:
                await self._show(reading)
                if self._signal == signal.SIGTSTP:
                    self._raise()
                    loop.add_signal_handler(signal.SIGTSTP, self._signalled, signal.SIGTSTP)
        except OSError:
            if self._signal != signal.SIGHUP:  # then there is no terminal any more
                raise
        if self._signal is not None:
            self._raise()
        return 0

    def _signalled(self, number: signal.Signals) -> None:
        self._signal = number
        self._over = self._over or number != signal.SIGTSTP
        self._key.set()

    def _raise(self) -> None:
        """What the signal would have done; after a stop, somebody has let us go on."""
        number, self._signal = self._signal, None
        assert number is not None
        asyncio.get_running_loop().remove_signal_handler(number)
        os.kill(os.getpid(), number)

    async def _show(self, reading: asyncio.Future[None]) -> None:
        """Until it is over, or a signal comes."""
        from rich.live import Live

        with (
            Live(console=self._console, screen=True, auto_refresh=False) as live,
            self._keys(),
        ):
            while not self._over and self._signal is None:
                live.update(self._frame(), refresh=True)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FRAME_S):
                        await self._key.wait()
                self._key.clear()
                if reading.done():
                    reading.result()

    def _frame(self) -> Text:
        from rich.text import Text

        width, height = self._console.size
        if self._explained is None:
            lines = _lines(self._reader, self._selection, width=width, height=height)
        else:
            shown = self._explained[self._top : self._top + height - 1]
            lines = [Text(line) for line in shown]
            lines.append(Text("q back  ↑↓ PgUp PgDn scroll", style="dim", end=""))
            for line in lines:
                line.truncate(width, overflow="ellipsis")
        return Text("\n", end="").join(lines)

    @contextlib.contextmanager
    def _keys(self) -> Iterator[None]:
        """Keys as they are pressed; nothing where stdin is no terminal."""
        import termios
        import tty

        if not sys.stdin.isatty():
            yield
            return
        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)
        loop = asyncio.get_running_loop()
        tty.setcbreak(number)
        loop.add_reader(number, self._typed, number)
        try:
            yield
        finally:
            loop.remove_reader(number)
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(number, termios.TCSADRAIN, before)

    def _typed(self, number: int) -> None:
        try:
            typed = os.read(number, 256).decode("ascii", "replace")
        except OSError:  # the terminal is gone
            typed = ""
        self._over = self._over or not typed
        for key in KEY.findall(typed):
            self._pressed(key)
        self._key.set()

    def _pressed(self, key: str) -> None:
        from drainfsm.views.screen import FILTERS

        move = 1 if key in DOWN else -1 if key in UP else 0
        if self._explained is not None:
            self._scroll(key, move)
        elif key in ("q", "\x04"):
            self._over = True
        elif move:
            self._choose(move)
        elif key == "f":
            at = FILTERS.index(self._selection.filter)
            wanted = FILTERS[(at + 1) % len(FILTERS)]
            self._selection = replace(self._selection, filter=wanted)
        elif key == "e":
            self._explain()

    def _scroll(self, key: str, move: int) -> None:
        assert self._explained is not None
        if key in ("q", "e", "\x1b"):
            self._explained = None
            return
        move += PAGES.get(key, 0) * max(1, self._console.size.height - 2)
        self._top = max(0, min(self._top + move, len(self._explained) - 1))

    def _choose(self, move: int) -> None:
        from drainfsm.views.screen import row_of

        jobs = self._reader.projection.by_urgency()
        if jobs:
            row = max(0, min(row_of(jobs, self._selection) + move, len(jobs) - 1))
            self._selection = replace(self._selection, job_id=jobs[row].job_id)

    def _explain(self) -> None:
        from drainfsm.views.screen import row_of

        jobs = self._reader.projection.by_urgency()
        if not jobs:
            return
        job = jobs[row_of(jobs, self._selection)]
        self._selection = replace(self._selection, job_id=job.job_id)
        self._top = 0
        if all(attempt.whole for attempt in job.attempts.values()):
            logs = {epoch: attempt.records for epoch, attempt in job.attempts.items()}
            self._explained = _explained(logs)
        else:
            self._explained = ["Reading the log …"]
            self._reading = asyncio.ensure_future(self._explain_from_log(job.job_id))

    async def _explain_from_log(self, job_id: str) -> None:
        """All of it: a long attempt is not kept as a whole."""
        from drainfsm.views.projections import ATTEMPTS_KEPT
        from drainfsm.views.replay import replay_job

        try:
            history = await asyncio.to_thread(self._reader.load, job_id)
            newest = replay_job(history.logs)[-ATTEMPTS_KEPT:]
            lines = _explained({one.final.epoch: one.counted for one in newest})
        except (DrainfsmError, OSError) as error:
            lines = [printable(f"The log cannot be read now: {error}")]
        if self._explained is not None and self._selection.job_id == job_id:
            self._explained = lines
        self._key.set()


def _explained(logs: Mapping[int, Sequence[Record]]) -> list[str]:
    """Attempts by number, the newest first."""
    lines = []
    for epoch in sorted(logs, reverse=True):
        lines.append(f"Attempt {epoch}")
        lines += [f"  {printable(line, chars_max=1_000)}" for line in explain(logs[epoch])]
    return lines
