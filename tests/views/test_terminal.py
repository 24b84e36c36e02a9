"""``watch`` on a real terminal, over resizing, restarts of the server and long logs; and its
pictures: ``SCREENSHOTS=docs/images`` writes those of docs/dashboards.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import html
import io
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest
from rich.console import Console
from rich.text import Text

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.codec import encode_lines
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.testing.scenario import Scenario
from drainfsm.views.history import read_file
from drainfsm.views.projections import RECORDS_KEPT, Projection
from drainfsm.views.replay import AttemptLog
from drainfsm.views.screen import Feed, Selection, screen
from drainfsm_kit.running import ROOMY, running_job
from drainfsm_kit.shipping import ship

WAIT_S = 60.0
IMAGES = Path(__file__).parents[2] / "docs/images"
DEMO = Path(__file__).parent / "data/demo.jsonl"
"""The log of `make demo`, as `drainfsm export` wrote it."""

SHOTS = os.environ.get("SCREENSHOTS", "")
SEEN_AFTER_MS = 40
"""After the event: the moment of a picture."""


class Terminal:
    """A program on a terminal of a size, and what stands on its screen."""

    def __init__(
        self, *argv: str, width: int, height: int, term: str = "xterm", shell: bool = False
    ) -> None:
        """``shell``: of one that can suspend it."""
        self._end, other = pty.openpty()
        self._screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self._screen)
        self._size(width, height)
        plain = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
        command = [sys.executable, "-m", "drainfsm", *argv]
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noediting", "-i"] if shell else command,
            stdin=other,
            stdout=other,
            stderr=other,
            env={k: v for k, v in os.environ.items() if k not in plain} | {"TERM": term},
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if shell else None,
        )
        os.close(other)
        if shell:
            self.type(f"{shlex.join(command)}\n")

    def _size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def resize(self, width: int, height: int) -> None:
        self._size(width, height)
        self._screen.resize(height, width)

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    @property
    def mode(self) -> tuple[bool, bool, bool]:
        """Whether it takes lines, whether it shows what is typed, and whether there is a cursor."""
        flags = termios.tcgetattr(self._end)[3]
        lines, echo = bool(flags & termios.ICANON), bool(flags & termios.ECHO)
        return lines, echo, not self._screen.cursor.hidden

    def feed(self) -> None:
        """What has been written until the program ended or stopped."""
        while select.select([self._end], [], [], 0)[0]:
            try:
                self._stream.feed(os.read(self._end, 65_536))
            except OSError:  # nobody is there any more
                return

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def until(self, pattern: str, *, mode: tuple[bool, bool, bool] | None = None) -> str:
        """What is shown once the pattern stands there, and the terminal is in that mode."""
        give_up = time.monotonic() + WAIT_S
        while not re.search(pattern, self.text) or mode not in (None, self.mode):
            assert time.monotonic() < give_up, f"no {pattern!r} in:\n{self.text}"
            if select.select([self._end], [], [], 1)[0]:
                self._stream.feed(os.read(self._end, 65_536))
        return self.text

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@contextlib.contextmanager
def watching(
    *argv: str, width: int = 80, height: int = 24, term: str = "xterm", shell: bool = False
) -> Iterator[Terminal]:
    terminal = Terminal("watch", *argv, width=width, height=height, term=term, shell=shell)
    try:
        yield terminal
    finally:
        terminal.close()


NORMAL = (True, True, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(number: signal.Signals) -> None:
    with watching("--file", str(DEMO)) as terminal:
        terminal.until("q quit")
        assert terminal.mode == (False, False, False)
        terminal.process.send_signal(number)
        assert terminal.process.wait(WAIT_S) in (-number, 128 + number)
        terminal.feed()
        assert terminal.mode == NORMAL


def test_it_can_be_suspended_and_goes_on_where_it_was() -> None:
    with watching("--file", str(DEMO), shell=True) as terminal:
        for kinds in ("all", "notices"):
            terminal.until("q quit", mode=(False, False, False))
            terminal.type("f")
            terminal.until(f"filter: {kinds}")
            terminal.type("\x1a")
            terminal.until("Stopped", mode=NORMAL)
            terminal.type("fg\n")
        terminal.until("filter: notices", mode=(False, False, False))
        terminal.type("q")
        terminal.until("filter: notices", mode=NORMAL)
        terminal.type("echo over with $?\n")
        terminal.until("over with 0")


def test_a_real_drain_is_watched_to_its_end_in_every_size(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    with (
        running_job(tmp_path, nats=nats_server.url) as job,
        watching("--nats", nats_server.url, "--job", job.job) as terminal,
    ):
        slowly = job.toy("--save-s", "8")  # time enough for what is seen of it
        agent = job.start(slowly, allowances=ROOMY, grace_s=120.0)
        terminal.until(f"> {job.job}/1  running, healthy")
        agent.signal()
        terminal.until("1 of 1 ranks hold at step")
        terminal.until(r"left +█+")
        assert re.search(r"needs .*exit 10\.0 s = .*: the save fits", terminal.text)
        terminal.resize(200, 50)
        assert "─" * 200 in terminal.until("─{200}")
        terminal.resize(40, 10)
        assert "q quit" in terminal.until("(?m)^─{40}$")
        terminal.resize(80, 24)
        assert agent.wait() == 75
        terminal.until(r"drain .*/1/1 .*: committed, .* before")
        terminal.type("e")
        terminal.until("Outcome")
        terminal.type("qq")
        assert terminal.process.wait(WAIT_S) == 0


def test_a_server_that_restarts_is_waited_for(
    own_nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    first, second = Scenario(job_id="first"), Scenario(job_id="second")
    ship(own_nats_server.url, read_logs(tmp_path, first))
    with watching("--nats", own_nats_server.url, width=200) as terminal:
        terminal.until("> first/1")
        own_nats_server.kill()
        terminal.until(r"STALE for .* s, since \d\d:\d\d:\d\d \(")
        assert "> first/1" in terminal.text
        again = EmbeddedServer.start(tmp_path / "nats", port=own_nats_server.port)
        try:
            ship(again.url, read_logs(tmp_path, second))
            terminal.until("second/1")
            assert "STALE" not in terminal.until(r"UTC  nats://")
        finally:
            again.kill()


def read_logs(tmp_path: Path, scenario: Scenario) -> tuple[AttemptLog, ...]:
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(scenario.history))
    return read_file(path).logs


def test_a_long_attempt_is_explained_from_its_log(tmp_path: Path) -> None:
    """Its last drain is behind what the view keeps."""
    scenario = Scenario(job_id="long")
    path = tmp_path / "log.jsonl"
    for number in range(RECORDS_KEPT):
        blind = e.SourceUnknown(source="aws", node=0, since_unix_ms=number, detail="no answer")
        scenario.when(e.SourceRecovered(source="aws", node=0) if number % 2 else blind)
    scenario.when(scenario.notice(in_ms=60_000))
    scenario.now_unix_ms += 50_000
    scenario.when(i.Tick())
    scenario.when(i.ReportExited(exit_code=75, nodes=()))
    assert len(scenario.history) > RECORDS_KEPT
    path.write_bytes(encode_lines(scenario.history))
    with watching("--file", str(path)) as terminal:
        terminal.until("> long/1")
        terminal.type("e")
        terminal.until("Attempt 1")
        terminal.until("Outcome: ")


def test_a_terminal_that_cannot_be_drawn_on_is_printed_to() -> None:
    with watching("--file", str(DEMO), width=120, term="dumb") as terminal:
        terminal.until("> demo/3  ended with exit code 0")


# --- pictures -----------------------------------------------------------------------------------


def moment(epoch: int, kind: type[e.Fact]) -> tuple[Projection, int]:
    """The demo's log up to an event, and the instant just after it."""
    projection = Projection()
    for record in read_file(DEMO).records:
        projection.read(record)
        if record.epoch == epoch and any(isinstance(event, kind) for event in record.events):
            return projection, record.at_unix_ms + SEEN_AFTER_MS
    raise AssertionError(f"no {kind.__name__} in epoch {epoch}")


def drawn(projection: Projection, now_unix_ms: int, *, width: int, height: int) -> list[Text]:
    feed = Feed(source="nats://nats.infra:4222")
    return screen(
        projection,
        feed=feed,
        selection=Selection(),
        now_unix_ms=now_unix_ms,
        width=width,
        height=height,
    )


def svg(lines: list[Text], *, width: int, height: int) -> str:
    console = Console(
        record=True, width=width, height=height, file=io.StringIO(), force_terminal=True
    )
    console.print(Text("\n", end="").join(lines))
    made = console.export_svg(title="drainfsm watch", unique_id="watch")
    return re.sub(r"@font-face \{.*?\}\s*", "", made, flags=re.DOTALL)  # they would be fetched


def words(picture: str) -> str:
    """The text of a picture, as far as it is the same for every version of rich."""
    parts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    return re.sub(r"\s+", "", html.unescape("".join(parts)))


@pytest.mark.parametrize(
    ("name", "epoch", "kind", "width", "height"),
    [("watch-80x24", 1, e.SaveStarted, 80, 24), ("watch-200", 2, e.SaveSkipped, 200, 24)],
)
def test_the_pictures_are_of_the_demo_s_drains(
    name: str, epoch: int, kind: type[e.Fact], width: int, height: int
) -> None:
    projection, now_unix_ms = moment(epoch, kind)
    lines = drawn(projection, now_unix_ms, width=width, height=height)
    picture = svg(lines, width=width, height=height)
    path = IMAGES / f"{name}.svg"
    if SHOTS:
        path.write_text(picture, encoding="utf-8")
    assert words(path.read_text(encoding="utf-8")) == words(picture), "SCREENSHOTS=… writes it anew"
