"""What drainfsm prints. A reader that stalls, or is gone, holds up nothing.

The library logs by ``logging`` under ``drainfsm``. ``printed_logs`` is how the command line prints
that; ``print_unheard`` is how ranks do, where the training script has not set up logging.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import logging
import os
import queue
import select
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from drainfsm.core.text import printable

LINES_MAX = 2_000
"""Lines that wait to be written; more are dropped, and counted."""

CHARS_MAX = 4_000
"""Length of one line."""

CONTINUED_MAX = 100
"""Lines of one message: a traceback has several."""

FLUSH_S = 0.2
"""For lines that still wait when the process ends; a reader that keeps up needs far less."""

STDERR = 2


class Printer:
    """Lines to a descriptor, written by a thread of its own. Nothing here blocks or raises."""

    def __init__(self, fd: int = STDERR) -> None:
        self._fd = fd
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._dropped_count = 0
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        if self._pid != os.getpid():
            self._begin()  # forked: the thread is the parent's
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="drainfsm-output", daemon=True)
                thread.start()
                self._thread = thread
            self._lines.put_nowait(line)
        except (queue.Full, RuntimeError):  # nobody reads, or there is no room for a thread
            self._dropped_count += 1

    def close(self, *, timeout_s: float = FLUSH_S) -> None:
        """Wait a moment for what was logged to be written."""
        if self._thread is None or self._pid != os.getpid():
            return
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._thread = None

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            written = self._write(line)
            if not written:
                self._dropped_count += 1
            elif (count := self._dropped_count) and self._write(
                f"drainfsm: {count} line(s) were not printed, as nobody read them"
            ):
                self._dropped_count -= count

    def _write(self, line: str) -> bool:
        """In one piece, so that lines of other processes do not get in between."""
        data = line.encode(errors="backslashreplace") + b"\n"
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # somebody made the descriptor non-blocking
                select.select([], [self._fd], [])
            except (OSError, ValueError):
                return False  # closed, a pipe without a reader, a full disk
        return True


class TextFormat(logging.Formatter):
    """``drainfsm: …``, a line a message; what goes on in further lines is indented, so that no
    text from elsewhere looks like a message."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        first, *more = _lines(record)
        origin = "" if record.name.partition(".")[0] == "drainfsm" else f"{record.name}: "
        return "\n  ".join((f"{self._prefix}: {origin}{first}", *more))


class JsonFormat(logging.Formatter):
    """One object a line, for collectors."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        known = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._fields,
            "message": "\n".join(_lines(record)),
        }
        if (event := getattr(record, "event", None)) is not None:
            known["event"] = event
        return json.dumps(known, ensure_ascii=False)


def _lines(record: logging.LogRecord) -> list[str]:
    text = record.getMessage()
    if record.exc_info:
        text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
    lines = text.rstrip().split("\n")
    if len(lines) > CONTINUED_MAX:
        lines = [*lines[: CONTINUED_MAX // 2], "…", *lines[-CONTINUED_MAX // 2 :]]
    return [printable(line, chars_max=CHARS_MAX) for line in lines]


class PrintingHandler(logging.Handler):
    def __init__(self, printer: Printer) -> None:
        super().__init__()
        self._printer = printer

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a message that cannot be formatted stops nothing
            self._printer.write(self.format(record))


class PrintedLines(io.TextIOBase):
    """``sys.stderr`` of a process whose event loop must never wait for it."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._begun = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STDERR

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._printer.write(line)
        return len(text)


@contextlib.contextmanager
def printed_logs(
    *,
    log_format: str = "text",
    prefix: str = "drainfsm",
    fields: Mapping[str, object] | None = None,
) -> Iterator[Printer]:
    """While inside, this process prints what is logged: all of drainfsm's messages, and warnings of
    others.

    ``fields``: added to every JSON object, as they are when it is made.
    """
    printer = Printer()
    handler = PrintingHandler(printer)
    handler.setFormatter(JsonFormat(fields or {}) if log_format == "json" else TextFormat(prefix))
    root = logging.getLogger()
    root.addHandler(handler)
    logging.getLogger("drainfsm").setLevel(logging.INFO)
    try:
        yield printer
    finally:
        root.removeHandler(handler)
        printer.close()


def repair_standard_streams() -> None:
    """Where a standard descriptor is closed, nothing that is opened later may get its number:
    what is printed would end up in a journal or a socket."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(fd, True)  # noqa: FBT003
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False))
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(STDERR, "w", closefd=False))


class _Unheard(PrintingHandler):
    """Prints only while nobody else has set up logging."""

    def emit(self, record: logging.LogRecord) -> None:
        others = [one for one in logging.getLogger("drainfsm").handlers if one is not self]
        if not logging.getLogger().handlers and not others:
            super().emit(record)


_unheard: list[Printer] = []


def print_unheard() -> None:
    """In a rank: warnings are printed where the training script has not set up logging."""
    if not _unheard:
        printer = Printer()
        _unheard.append(printer)
        handler = _Unheard(printer)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(TextFormat("drainfsm"))
        logging.getLogger("drainfsm").addHandler(handler)
        atexit.register(printer.close)


def say_last(log: logging.Logger, text: str) -> None:
    """A warning just before the process ends abruptly; a failure here does not stop that."""

    def say() -> None:
        log.warning(text)
        for printer in _unheard:
            printer.close()

    with contextlib.suppress(RuntimeError):
        thread = threading.Thread(target=say, name="drainfsm-last-words", daemon=True)
        thread.start()
        thread.join(2 * FLUSH_S)
