"""The journal of one attempt: the log on this machine, before anybody else has seen it.

A record is fact once ``append`` has returned: it is on disk. One file an attempt, one writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from drainfsm.core.chain import LogHead
from drainfsm.core.codec import decode, decode_as_stored, decode_lines, encode, link_behind
from drainfsm.core.records import Record, subject_of
from drainfsm.durable import make_directory, sync_directory
from drainfsm.errors import (
    ConfigError,
    JournalCorruptError,
    JournalLockedError,
    JournalUnusableError,
    RecordUnreadableError,
    StaleWriterError,
)
from drainfsm.log.frames import frame, header_bytes, payloads, read_header

_NAME = re.compile(r"(\d{6,})\.journal")


def journal_path(state_dir: Path, *, job_id: str, epoch: int) -> Path:
    return state_dir / job_id / "journal" / f"{epoch:06d}.journal"


def journals(state_dir: Path, job_id: str) -> dict[int, Path]:
    """The journals of a job in this state directory, by epoch, oldest first."""
    directory = journal_path(state_dir, job_id=job_id, epoch=0).parent
    found: dict[int, Path] = {}
    if directory.is_dir():
        for path in directory.iterdir():
            if match := _NAME.fullmatch(path.name):
                found[int(match[1])] = path
    return dict(sorted(found.items()))


def job_names(state_dir: Path) -> list[str]:
    """Jobs that have a directory for journals in this state directory, sorted."""
    if not state_dir.is_dir():
        return []
    return sorted(path.name for path in state_dir.iterdir() if (path / "journal").is_dir())


def prepare_directory(state_dir: Path, *, job_id: str) -> None:
    """Create the directory of the job's journals, and check that they can be written there.

    Raises:
        ConfigError: they cannot.
    """
    directory = journal_path(state_dir, job_id=job_id, epoch=0).parent
    try:
        make_directory(directory)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigError(
            f"state_dir {state_dir}: cannot write in {directory}: {error.strerror or error}; "
            "give --state-dir a directory that can be created and written"
        ) from error


def read_journal(path: Path, *, each: Callable[[bytes], Record] = decode) -> Iterator[Record]:
    """The records on disk, oldest first; a torn tail ends them, as does one being written.
    ``each``: how one is read; by ``decode_as_stored`` for who passes them on.

    Raises:
        JournalCorruptError: damage before the tail, after the records that stand before it.
        RecordUnreadableError: a record of a newer version.
        FileNotFoundError: no such journal.
    """
    data = path.read_bytes()
    with _naming(path):
        _, start = read_header(data)
        if start:
            for _, records in _records(data, start, each=each):
                yield from records


class JournalReader:
    """Reads a journal that is being written: every call gives what has come since the last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_id: tuple[int, int] | None = None
        self._size = -1
        """When it was last read: one that has not grown since is not opened."""

        self._offset = 0
        self._count = 0

    def read_on(self) -> list[Record] | None:
        """None: it is not the file that was read so far, or records that were there are gone (a
        write that failed is taken back): begin anew with another reader.

        Raises:
            JournalCorruptError, RecordUnreadableError, FileNotFoundError: as ``read_journal``.
        """
        found = self.path.stat()
        if self._file_id == (found.st_dev, found.st_ino) and self._size == found.st_size:
            return []
        with self.path.open("rb") as file:
            found = os.fstat(file.fileno())
            file_id = (found.st_dev, found.st_ino)
            if self._file_id not in (None, file_id) or found.st_size < self._offset:
                return None
            self._file_id = file_id
            file.seek(self._offset)
            data = file.read()
        self._size = self._offset + len(data)
        with _naming(self.path):
            return self._parse(data)

    def _parse(self, data: bytes) -> list[Record]:
        start = 0
        if not self._offset:
            _, start = read_header(data)
            if not start:
                return []
        begin, found = self._offset, list[Record]()
        self._offset = self._offset or start
        try:
            for end, records in _records(data, start, count=self._count):
                found += records
                self._offset = begin + end
                self._count += len(records)
        except (JournalCorruptError, RecordUnreadableError):
            self._size = -1
            if not found:
                raise  # else the next call comes upon it, after what stands before it
        return found


def read_lines(path: Path) -> Iterator[bytes]:
    """The same, undecoded, one record each: for who looks whether they are what was written.

    Raises:
        JournalCorruptError: damage before the tail, after the lines that stand before it.
        FileNotFoundError: no such journal.
    """
    data = path.read_bytes()
    with _naming(path):
        _, start = read_header(data)
        if start:
            for _, payload in payloads(data, start):
                yield from payload.split(b"\n")


class Journal:
    """The one writer of one attempt's log."""

    def __init__(self, path: Path, fd: int, *, job_id: str, epoch: int) -> None:
        self.path = path
        self.job_id = job_id
        self.epoch = epoch
        self.records: list[Record] = []
        """What is durable, oldest first. Read it, never change it."""

        self.dropped_bytes = 0
        """Length of the torn tail that ``open`` found and cut off."""

        self._fd = fd
        self._size = 0
        self._broken = ""

    @classmethod
    def open(cls, path: Path, *, job_id: str, epoch: int) -> Journal:
        """Create the journal, or continue it; a torn tail is cut off and counted.

        Raises:
            JournalLockedError: another process has it open.
            JournalCorruptError: damage before the tail, or the journal of another attempt.
            RecordUnreadableError: it holds a record of a newer version.
            JournalUnusableError: it cannot be created, read or written.
        """
        with _opening(path):
            make_directory(path.parent)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        journal = cls(path, fd, job_id=job_id, epoch=epoch)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JournalLockedError(
                    f"{path} is written by another process: stop that one first"
                ) from None
            with _naming(path), _opening(path):
                journal._recover()
                sync_directory(path.parent)
        except BaseException:
            os.close(fd)
            raise
        return journal

    @property
    def count(self) -> int:
        """Durable records: what the next one follows."""
        return len(self.records)

    @property
    def head(self) -> LogHead | None:
        """The end of the chain; None: there is nothing. May be asked from any thread."""
        count = self.count
        if not count:
            return None
        return LogHead(count=count, digest=link_behind(self.records[count - 1 : count]))

    def append(self, *records: Record) -> None:
        """Make the records durable, all or none.

        Raises:
            StaleWriterError: a record does not follow the last one, or is of another attempt.
            OSError: the disk refused; nothing was appended.
        """
        if not records:
            return
        self._check(records)
        self.write(frame(b"\n".join(_line(record) for record in records)))
        self.records.extend(records)

    def close(self) -> None:
        """Let go of the file and of its lock. Twice is fine."""
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)

    def _recover(self) -> None:
        data = _read_all(self._fd)
        header, start = read_header(data)
        if header is None:
            os.ftruncate(self._fd, 0)
            self.dropped_bytes = len(data)
            self.write(header_bytes(job_id=self.job_id, epoch=self.epoch))
            return
        if (header.job_id, header.epoch) != (self.job_id, self.epoch):
            raise JournalCorruptError(
                f"it is the journal of job {header.job_id} epoch {header.epoch}, "
                f"not of job {self.job_id} epoch {self.epoch}"
            )
        self._size = start
        for end, records in _records(data, start, each=decode_as_stored):
            self.records.extend(records)
            self._size = end
        self.dropped_bytes = len(data) - self._size
        if self.dropped_bytes:
            os.ftruncate(self._fd, self._size)
        # What was read may still be in the page cache only, if its writer was killed.
        os.fdatasync(self._fd)

    def _check(self, records: Iterable[Record]) -> None:
        for position, record in enumerate(records, start=self.count):
            own = record.job_id == self.job_id and record.epoch == self.epoch
            if not own or record.follows != position:
                raise StaleWriterError(
                    subject_of(job_id=record.job_id, epoch=record.epoch),
                    expected_count=record.follows,
                    actual_count=position if own else None,
                )

    def write(self, data: bytes) -> None:
        """Append bytes, durable, all or none. ``append`` is built on it.

        Raises:
            OSError: the disk refused; nothing was written.
        """
        if self._fd == -1:
            raise ValueError(f"{self.path} is closed")
        if self._broken:
            raise OSError(f"{self.path} is unusable since an earlier write failed: {self._broken}")
        try:
            written = 0
            while written < len(data):  # a regular file is written short only when it is full
                written += os.pwrite(self._fd, data[written:], self._size + written)
            os.fdatasync(self._fd)
        except BaseException:
            self._roll_back()
            raise
        self._size += len(data)

    def _roll_back(self) -> None:
        """Cut off what a failed append may have left."""
        try:
            os.ftruncate(self._fd, self._size)
            os.fdatasync(self._fd)
        except OSError as error:
            self._broken = str(error)


def _line(record: Record) -> bytes:
    """An event of an unknown kind is kept as it came, but not the line breaks in it."""
    data = encode(record)
    return msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data


def _records(
    data: bytes, start: int, *, count: int = 0, each: Callable[[bytes], Record] = decode
) -> Iterator[tuple[int, list[Record]]]:
    for end, payload in payloads(data, start):
        records = list(decode_lines(payload, each=each)) if b"\n" in payload else [each(payload)]
        for record in records:
            if record.follows != count:
                raise JournalCorruptError(
                    f"record {record.id} follows {record.follows} records, but stands after {count}"
                )
            count += 1
        yield end, records


def _read_all(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors that say which file."""
    try:
        yield
    except (JournalCorruptError, RecordUnreadableError) as error:
        raise type(error)(f"{path}: {error}") from error


@contextlib.contextmanager
def _opening(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JournalUnusableError(
            f"cannot open the journal {path}: {error.strerror or error}; make it writable, or give "
            "--state-dir another directory"
        ) from error
