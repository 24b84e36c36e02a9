"""The job of a drill on this machine: one agent, the user's command, a store of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from drainfsm.core import events as e
from drainfsm.core.budget import Allowances
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.core.records import Record
from drainfsm.core.rules import events_of
from drainfsm.drills.disk import DiskError, DrillDisk
from drainfsm.drills.errors import DrillError
from drainfsm.errors import DrainfsmError
from drainfsm.log.journal import journals, read_journal
from drainfsm.runtime.agent.notify import give_notice, withdraw_notice
from drainfsm.runtime.processes.proc import PROC, job_processes, name_of

NODE, DRILL = "DRILL_NODE", "DRILL_DIR"
OPTIONS = "DRAINFSM_"
"""How the variables begin that are options of a job: a real store may be named there."""

JOBS = "drill-"
"""Scenarios share the log's server: each is a job of its own."""

POLL_S = 0.05
QUICK_POLL_S = 0.002
LOG_CHARS = 2_000
ENDS_S = 10.0
"""Longest wait for processes that were killed."""

LIVES_S, LIVES_S_MAX = 3_600.0, 30 * 86_400.0
"""Beyond the longest waits of a scenario: an attempt whose drill was killed drains itself then."""

SOURCE = "drill"
F = TypeVar("F", bound=e.Fact)
R = TypeVar("R")

CONFIG = """\
job = {job}
store = {store}
nats = {nats}
job_timeout = {lives_s:.0f}
token = "drill"
grace = {grace_s:g}
cordon = "command"
heartbeat = 0.5

[allowances]
{allowances}

[checkpoint]
every_steps = {every_steps}

[adapters.command]
cordon = 'touch "$DRILL_DIR/cordoned/$DRILL_NODE"'
"""


class DrillSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all scenarios of one call have in common."""

    command: tuple[str, ...]
    grace_s: float
    every_steps: int
    allowances: Allowances
    nats_url: str
    timeout_s: float
    """Longest wait for anything."""

    @property
    def short_s(self) -> float:
        """A window in which no save fits, but leaving does."""
        fixed = self.allowances
        needed_ms = fixed.quiesce_ms + fixed.commit_ms + fixed.exit_margin_ms
        return max(fixed.exit_margin_ms + 1_000, 0.7 * needed_ms) / 1_000


class DrillAttempt:
    """One start of the job."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        node: str,
        log: Path,
        marks: tuple[str, str],
    ) -> None:
        """``marks``: in the environment of everything that it starts."""
        self.process = process
        self.node = node
        self.log = log
        self.gone_unix_ms: int | None = None
        """When its last process was gone: its agent, or what outlived that."""

        self._marks = marks

    def poll(self) -> int | None:
        """The agent's exit code."""
        code = self.process.poll()
        if code is not None and self.gone_unix_ms is None and not self.left():
            self.gone_unix_ms = time.time_ns() // 1_000_000
        return code

    def left(self) -> list[int]:
        """What it has started and still runs, once its agent is gone."""
        return _marked(*self._marks)

    def ranks(self) -> list[int]:
        """Processes that train: those that a launcher gave a rank, else all of the command's."""
        found = [one.pid for one in job_processes(self.process.pid, others=())]
        found = [pid for pid in found if name_of(pid) != "nats-server"]
        return [pid for pid in found if _has_rank(pid)] or found

    def everything(self) -> list[int]:
        return [one.pid for one in job_processes(self.process.pid, others=())]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_CHARS:]


class DrillJob:
    """Everything of one scenario lies below one directory."""

    def __init__(self, root: Path, settings: DrillSettings) -> None:
        self.root = root
        self.job = JOBS + root.name
        self.settings = settings
        self.store = root / "store"
        self.attempts: list[DrillAttempt] = []
        self.disk: DrillDisk | None = None
        self.note = ""
        """Not empty: how the scenario differs from what its name says, and why."""

        for directory in (self.store, self.cordoned):
            directory.mkdir(parents=True, exist_ok=True)

    def put_store_on(self, kind: Callable[[Path], DrillDisk]) -> None:
        """Where this machine has none for it, ``note`` says so."""
        try:
            self.disk = kind(self.store)
        except DiskError as error:
            self.note = f"no file system of its own: {error}"

    @property
    def store_seen(self) -> Path:
        """The store as it is seen from here."""
        return self.store if self.disk is None else self.disk.seen

    @property
    def cordoned(self) -> Path:
        return self.root / "cordoned"

    def start(self, *, nats_url: str | None = None) -> DrillAttempt:
        """On a node of its own, with a state directory of its own: another machine."""
        number = len(self.attempts) + 1
        node, config = f"node-{number}", self.root / f"node-{number}.toml"
        if (self.cordoned / node).exists():
            raise DrillError(f"{node} is cordoned")
        config.write_text(self._config(self.settings.nats_url if nats_url is None else nats_url))
        command = [sys.executable, "-m", "drainfsm", "run", "--config", str(config)]
        command += ["--state-dir", str(self._state_dir(number)), "--", *self.settings.command]
        if self.disk is not None:
            command = self.disk.command(command)
        log = self.root / f"{node}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**outside_any_job(), NODE: node, DRILL: str(self.root)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        marks = self._mark, f"\0{NODE}={node}\0"
        self.attempts.append(DrillAttempt(process, node=node, log=log, marks=marks))
        return self.attempts[-1]

    @property
    def _mark(self) -> str:
        """In the environment of everything that the drill starts."""
        return f"\0{DRILL}={self.root}\0"

    def _config(self, nats_url: str) -> str:
        fields = msgspec.to_builtins(self.settings.allowances)
        return CONFIG.format(
            job=json.dumps(self.job),
            store=json.dumps(str(self.store)),
            nats=json.dumps(nats_url),
            lives_s=min(LIVES_S + 10 * self.settings.timeout_s, LIVES_S_MAX),
            grace_s=self.settings.grace_s,
            allowances="\n".join(f"{name} = {value}" for name, value in fields.items()),
            every_steps=self.settings.every_steps,
        )

    def _state_dir(self, number: int) -> Path:
        return self.root / f"state-{number}"

    def notify(
        self,
        *,
        in_s: float,
        soft: bool = False,
        cause: Cause = Cause.SPOT_INTERRUPTION,
        native_id: str = "first",
    ) -> None:
        """To the newest attempt, as `drainfsm notify` on its node does.

        Raises:
            DrillError: the notice was not taken.
        """
        now_unix_ms = time.time_ns() // 1_000_000
        notice = Notice(
            source=SOURCE,
            native_id=native_id,
            cause=cause,
            notice_class=NoticeClass.SOFT if soft else NoticeClass.HARD,
            deadline_unix_ms=now_unix_ms + round(in_s * 1_000),
            received_unix_ms=now_unix_ms,
        )
        self._call(lambda where: give_notice(where, job=self.job, notice=notice))

    def withdraw(self, native_id: str) -> None:
        """Raises: DrillError: it was not taken back."""
        self._call(
            lambda where: withdraw_notice(
                where, job=self.job, source=SOURCE, native_id=native_id, reason="not needed"
            )
        )

    def _call(self, call: Callable[[Path], str]) -> None:
        try:
            call(self._state_dir(len(self.attempts)))
        except DrainfsmError as error:
            raise DrillError(f"the notice was not taken: {error}") from error

    def generations(self) -> set[str]:
        """Ids of the generations that were begun, committed or not."""
        directory = self.store_seen / "generations"
        return {path.name for path in directory.iterdir()} if directory.is_dir() else set()

    # --- what happened --------------------------------------------------------------------------

    def records(self, epoch: int) -> list[Record]:
        for number in range(len(self.attempts), 0, -1):
            path = journals(self._state_dir(number), self.job).get(epoch)
            if path is not None:
                with contextlib.suppress(DrainfsmError):
                    return list(read_journal(path))
        return []

    def events(self, epoch: int) -> list[e.Event]:
        return list(events_of(self.records(epoch)))

    def find(self, kind: type[F], epoch: int) -> list[F]:
        return [event for event in self.events(epoch) if isinstance(event, kind)]

    def wait_for(self, *kinds: type[e.Fact], epoch: int, count: int = 1) -> bool:
        """Wait until this many of these are on record; False: the attempt ended before.

        Raises:
            DrillError: neither, for too long.
        """

        def there() -> bool:
            return sum(isinstance(event, kinds) for event in self.events(epoch)) >= count

        what = " or ".join(kind.__name__ for kind in kinds)
        self.wait(lambda: there() or self.attempts[-1].poll() is not None, what=what)
        return there()

    def wait(self, found: Callable[[], R], *, what: str, quick: bool = False) -> R:
        """Raises: DrillError: not within the time limit; says what the agents said."""
        give_up = time.monotonic() + self.settings.timeout_s
        while time.monotonic() < give_up:
            if result := found():
                return result
            time.sleep(QUICK_POLL_S if quick else POLL_S)
        said = "\n".join(f"--- {one.node}\n{one.tail()}" for one in self.attempts)
        raise DrillError(f"no {what} within {self.settings.timeout_s:g} s\n{said}")

    def close(self) -> None:
        """Kill what may still run, frozen or not.

        Raises:
            OSError: there is no room for what was on its disk.
        """
        for attempt in self.attempts:
            if attempt.process.poll() is None:
                _kill([attempt.process.pid, *attempt.everything()])
        give_up = time.monotonic() + ENDS_S
        while (left := _marked(self._mark)) and time.monotonic() < give_up:
            _kill(left)
            time.sleep(POLL_S)
        for attempt in self.attempts:
            with contextlib.suppress(subprocess.TimeoutExpired):
                attempt.process.wait(ENDS_S)
        if self.disk is not None:
            self.disk.close()
            self.disk = None


def outside_any_job() -> dict[str, str]:
    """The environment, without the options of a job: they win over a configuration file."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OPTIONS)}


def _marked(*marks: str) -> list[int]:
    """Processes with all of these in their environment."""
    wanted = [os.fsencode(mark) for mark in marks]
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            environment = b"\0" + _read(entry / "environ")
            if all(mark in environment for mark in wanted):
                found.append(int(entry.name))
    return found


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _has_rank(pid: int) -> bool:
    return b"\0RANK=" in b"\0" + _read(PROC / str(pid) / "environ")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone, or somebody else's
        return b""
