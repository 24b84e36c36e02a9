"""A job's log as it is stored, undecoded: from a file, journals or the stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm.core.records import subjects_of
from drainfsm.errors import ConfigError, JournalCorruptError, RecordUnreadableError
from drainfsm.log.frames import MAGIC
from drainfsm.log.journal import journals, read_lines
from drainfsm.views.history import CONNECT_S, open_log
from drainfsm.views.verify import RawLine

if TYPE_CHECKING:
    from drainfsm.log.server import NatsServer


class RawLog(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    lines: list[RawLine]
    damage: str = ""
    """Not empty: what could not be read, and why."""

    forgets_after_ms: int | None = None
    """How old a record gets in it; 0: for ever; None: nothing says so."""


class _Names(msgspec.Struct, frozen=True):
    job_id: str = ""


def file_lines(path: Path, *, job_id: str | None) -> RawLog:
    """Of one job, or of whatever is in there.

    Raises:
        ConfigError: there is no such file.
    """
    try:
        with open_log(path) as file:
            if file.read(len(MAGIC)) == MAGIC:
                return _journal(path)
            file.seek(0)
            lines = [
                RawLine(f"line {number}", data.rstrip(b"\r\n"))
                for number, data in enumerate(file, start=1)
                if data.strip()
            ]
    except OSError as error:
        raise ConfigError(f"--file {path}: {error.strerror}") from error
    if job_id is not None:
        lines = [line for line in lines if _job_of(line.data) in (job_id, None)]
    return RawLog(where=str(path), lines=lines)


def _job_of(data: bytes) -> str | None:
    """None: it does not say."""
    try:
        return read_json(data, _Names, RecordUnreadableError).job_id
    except RecordUnreadableError:
        return None


def journal_lines(state_dir: Path, *, job_id: str) -> RawLog:
    """Of every attempt whose journal is on this machine."""
    found = [_journal(path) for path in journals(state_dir, job_id).values()]
    return RawLog(
        where=f"the journals under {state_dir}",
        lines=[line for one in found for line in one.lines],
        damage="; ".join(one.damage for one in found if one.damage),
    )


def _journal(path: Path) -> RawLog:
    lines: list[RawLine] = []
    damage = ""
    try:
        for number, data in enumerate(read_lines(path)):
            lines.append(RawLine(f"{path.name}, record {number}", data))
    except (JournalCorruptError, OSError) as error:
        damage = f"{error}"
    return RawLog(where=str(path), lines=lines, damage=damage)


def stream_lines(server: NatsServer, *, job_id: str) -> RawLog:
    """Raises: BrokerError: the server cannot be used."""
    import asyncio

    from drainfsm.log.server import public

    lines, forgets_after_ms = asyncio.run(_stream(server, job_id))
    where = f"the stream at {public(server)}"
    return RawLog(where=where, lines=lines, forgets_after_ms=forgets_after_ms)


async def _stream(server: NatsServer, job_id: str) -> tuple[list[RawLine], int | None]:
    from drainfsm.log.jetstream import connect
    from drainfsm.log.stream import forgets_after_ms

    connection = await connect(server, timeout_s=CONNECT_S)
    try:
        config = (await connection.stream_info()).config
        lines = [
            RawLine(f"message {message.sequence}", message.data)
            async for message in connection.messages(subjects_of(job_id))
        ]
        return lines, forgets_after_ms(config) if config else None
    finally:
        await connection.close()
