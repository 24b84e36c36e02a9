"""A projection of an exported file that is being written, each byte of it read once."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from drainfsm.core.codec import decode
from drainfsm.errors import RecordUnreadableError
from drainfsm.log.frames import MAGIC as JOURNAL_MAGIC
from drainfsm.views.history import History, open_log, read_file
from drainfsm.views.projections import Projection

KNOWN_AGAIN_BYTES = 256
"""In front of what is new: where others stand there, it is another file, though it has grown."""


class GrowingFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: object = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.projection = Projection()
        self._offset = self._line_count = 0
        self._before = b""
        self._unfinished = b""
        """What stands behind the last line."""

        self._told = False
        """That it is no record: nobody has written on."""

    def poll(self) -> bool:
        """Read what has come; whether anything has.

        Raises:
            ConfigError: it is nothing that holds a log.
            OSError: it cannot be read.
        """
        found = self._path.stat()
        seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen:
            return self._tell_unfinished()
        with open_log(self._path) as file:
            if file.read(len(JOURNAL_MAGIC)) == JOURNAL_MAGIC:
                self.projection = projected(read_file(self._path))
            else:
                if self._told or not self._known_again(file):
                    self._begin_anew()
                file.seek(self._offset)
                self._read(file.read())
        self._seen = seen
        return True

    def _known_again(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before

    def _read(self, data: bytes) -> None:
        """Whole lines, and a last one without an end if it is a record."""
        end = data.rfind(b"\n") + 1
        for line in data[:end].splitlines():
            self._line_count += 1
            try:
                self.projection.read(decode(line))
            except RecordUnreadableError as error:
                if line.strip():
                    self._read_garbage(self._line_count, error)
        self._unfinished, used = data[end:], data[:end]
        if self._unfinished:
            try:
                self.projection.read(decode(self._unfinished))
            except RecordUnreadableError:
                pass  # perhaps it is being written
            else:
                self._unfinished, used = b"", data
        self._offset += len(used)
        self._before = (self._before + used)[-KNOWN_AGAIN_BYTES:]

    def _tell_unfinished(self) -> bool:
        if not self._unfinished.strip() or self._told:
            return False
        try:
            decode(self._unfinished)
        except RecordUnreadableError as error:
            self._read_garbage(self._line_count + 1, error)
        self._told = True
        return True

    def _read_garbage(self, line: int, error: RecordUnreadableError) -> None:
        self.projection.read_garbage(f"{self._path.name}, line {line}: {error}")


def projected(history: History) -> Projection:
    """Of that, and nothing else."""
    projection = Projection()
    for record in history.records:
        projection.read(record)
    if history.damage:
        projection.read_garbage(history.damage)
    return projection
