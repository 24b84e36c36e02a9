"""A job's history, from an exported file, the journals of this machine or the stream."""

from __future__ import annotations

import contextlib
import io
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from drainfsm.core.codec import decode, decode_as_stored, encode
from drainfsm.core.records import Record, subjects_of
from drainfsm.errors import ConfigError, LogError, RecordUnreadableError
from drainfsm.log.frames import MAGIC as JOURNAL_MAGIC
from drainfsm.log.journal import journals, read_journal
from drainfsm.store.base import ObjectStore
from drainfsm.store.kept_log import kept_objects
from drainfsm.views.replay import AttemptLog

if TYPE_CHECKING:
    from drainfsm.log.server import NatsServer

UNREADABLE_NAMED_MAX = 3
CONNECT_S = 5.0
"""A postmortem is not in a hurry, but its reader is a person."""


UNPACK = "unpack it first, or pipe it: `zcat … | drainfsm … --file /dev/stdin`"
OTHER_FORMS = {
    "compressed by gzip": (b"\x1f\x8b", UNPACK),
    "compressed by zstd": (b"\x28\xb5\x2f\xfd", UNPACK.replace("zcat", "zstdcat")),
    "compressed by xz": (b"\xfd7zXZ", UNPACK.replace("zcat", "xzcat")),
    "compressed by bzip2": (b"BZh", UNPACK.replace("zcat", "bzcat")),
    "Parquet": (b"PAR1", "that is for other programs; export records, which can be read back"),
}
"""By what their files begin with, which no log does; and what to do."""

HEAD_BYTES = 16


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What could be read."""

    logs: tuple[AttemptLog, ...]
    damage: str = ""
    """Not empty: what could not be read, and why."""

    @property
    def records(self) -> list[Record]:
        return [record for log in self.logs for record in log.records]


def refuse_device(path: Path) -> None:
    """Some have no end, and none holds a log. What is not there is for others to say.

    Raises:
        ConfigError: it is one.
    """
    with contextlib.suppress(OSError):
        kind = path.stat().st_mode
        if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            raise ConfigError(f"--file {path}: it is a device, not a file")


@contextlib.contextmanager
def open_log(path: Path) -> Iterator[BinaryIO]:
    """The file, where it can be read more than once: what comes through a pipe, in a temporary
    one.

    Raises:
        ConfigError: nothing that holds a log.
        OSError: it cannot be read.
    """
    refuse_device(path)
    with contextlib.ExitStack() as files:
        file: BinaryIO = files.enter_context(path.open("rb"))
        if not file.seekable():
            piped, file = file, files.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(piped, file)
            file.seek(0)
        head = file.read(HEAD_BYTES)
        for form, (magic, what_to_do) in OTHER_FORMS.items():
            if head.startswith(magic):
                raise ConfigError(f"--file {path}: it is {form}: {what_to_do}")
        if head.startswith(JOURNAL_MAGIC) and is_pipe(path):
            raise ConfigError(f"--file {path}: a journal is read from its file, not from a pipe")
        file.seek(0)
        yield file


def is_pipe(path: Path) -> bool:
    """What is not there is none."""
    with contextlib.suppress(OSError):
        return stat.S_ISFIFO(path.stat().st_mode)
    return False


def read_file(path: Path, *, each: Callable[[bytes], Record] = decode) -> History:
    """An exported file, less what is not a record, or a journal up to its damage. ``each``: how a
    record is read; by ``decode_as_stored`` for who passes it on, or looks at its bytes.

    Raises:
        ConfigError: there is no such file.
    """
    try:
        with open_log(path) as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"--file {path}: {error.strerror}") from error
    if data.startswith(JOURNAL_MAGIC):
        records, damage = read_one_journal(path)
        return History(logs=by_attempt(records), damage=damage)
    return _read_lines(path, data, each)


def _read_lines(path: Path, data: bytes, each: Callable[[bytes], Record]) -> History:
    records: list[Record] = []
    unreadable = Unreadable()
    for number, line in enumerate(_lines(data), start=1):
        try:
            records.append(each(line))
        except RecordUnreadableError as error:
            if line.strip():
                unreadable.add(f"{path}, line {number}: {error}")
    return History(logs=by_attempt(records), damage=unreadable.summary)


class Unreadable:
    """What is not a record of the log: others may write there, and forge. The rest is read, and
    readers skip what has lost its place."""

    def __init__(self) -> None:
        self._examples: list[str] = []
        self._count = 0

    def add(self, text: str) -> None:
        self._count += 1
        if len(self._examples) < UNREADABLE_NAMED_MAX:
            self._examples.append(text)

    @property
    def summary(self) -> str:
        more = self._count - len(self._examples)
        return "; ".join((*self._examples, *([f"and {more} more"] if more else ())))


def _lines(data: bytes) -> Iterable[bytes]:
    """``splitlines`` looks at every byte for a carriage return; a file of ours has none."""
    return data.splitlines() if b"\r" in data else io.BytesIO(data)


def read_kept(store: ObjectStore) -> History:
    """What attempts have put beside the checkpoints.

    Raises:
        StoreUnreachableError: the store does not answer.
    """
    records: list[Record] = []
    damages: list[str] = []
    for name, data in kept_objects(store):
        found = _read_lines(Path(name), data, decode_as_stored)
        records += found.records
        damages += [found.damage] if found.damage else []
    return History(logs=by_attempt(records), damage="; ".join(damages))


def with_kept(history: History, kept: History) -> History:
    """Attempts of the jobs in ``history`` or beside it, each from where more of it is."""
    found = {(log.job_id, log.epoch): log for log in kept.logs}
    for log in history.logs:
        other = found.get((log.job_id, log.epoch))
        if other is None or len(log.records) >= len(other.records):
            found[log.job_id, log.epoch] = log
    damage = "; ".join(filter(None, (history.damage, kept.damage)))
    return History(logs=tuple(found[key] for key in sorted(found)), damage=damage)


def read_journals(state_dir: Path, *, job_id: str) -> History:
    """The journals that this machine holds; empty where it holds none."""
    logs: list[AttemptLog] = []
    damages: list[str] = []
    for epoch, path in journals(state_dir, job_id).items():
        records, damage = read_one_journal(path)
        logs.append(AttemptLog(job_id=job_id, epoch=epoch, records=tuple(records)))
        damages += [damage] if damage else []
    return History(logs=tuple(logs), damage="; ".join(damages))


def read_stream(server: NatsServer | str, *, job_id: str) -> History:
    """What the stream holds of the job.

    Raises:
        BrokerError: the server cannot be used.
    """
    import asyncio

    return asyncio.run(_read_stream(server, job_id))


async def _read_stream(server: NatsServer | str, job_id: str) -> History:
    from drainfsm.log.jetstream import connect

    every_attempt = subjects_of(job_id)
    records: list[Record] = []
    unreadable = Unreadable()
    connection = await connect(server, timeout_s=CONNECT_S)
    try:
        async for message in connection.messages(every_attempt):
            where = f"message {message.sequence} of the stream"
            try:
                record = decode_as_stored(message.data)
            except RecordUnreadableError as error:
                unreadable.add(f"{where}: {error}")
                continue
            if record.job_id == job_id:
                records.append(record)
            else:
                unreadable.add(f"{where}: it says that it is of job {record.job_id!r}")
    finally:
        await connection.close()
    return History(logs=by_attempt(records), damage=unreadable.summary)


def read_one_journal(path: Path) -> tuple[list[Record], str]:
    """The records before the damage, and the damage."""
    records: list[Record] = []
    try:
        for record in read_journal(path, each=decode_as_stored):
            records.append(record)
    except (LogError, OSError) as error:
        return records, str(error)
    return records, ""


def export_lines(history: History) -> bytes:
    """One record a line. ``read_file`` gives the same history back, and the same bytes again."""
    return b"".join(_one_line(encode(record)) for record in history.records)


def _one_line(encoded: bytes) -> bytes:
    """An event of an unknown kind is kept as it came, but not the line breaks in it."""
    if b"\n" in encoded or b"\r" in encoded:
        encoded = msgspec.json.format(encoded, indent=-1)
    return encoded + b"\n"


def by_attempt(records: Iterable[Record]) -> tuple[AttemptLog, ...]:
    """Records of whole logs, told apart by job and epoch; the order inside each stays."""
    logs: dict[tuple[str, int], list[Record]] = {}
    job_id, epoch, found = "", -1, list[Record]()
    for record in records:
        if record.epoch != epoch or record.job_id != job_id:  # usually that of the record before
            job_id, epoch = record.job_id, record.epoch
            found = logs.setdefault((job_id, epoch), [])
        found.append(record)
    return tuple(
        AttemptLog(job_id=job_id, epoch=epoch, records=tuple(found))
        for (job_id, epoch), found in logs.items()
    )
