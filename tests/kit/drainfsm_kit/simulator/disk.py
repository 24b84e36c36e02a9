"""The state directory of node 0, with the journals in it, on a simulated file system."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from drainfsm.core.records import Record
from drainfsm.errors import JournalCorruptError
from drainfsm.log.journal import Journal, journal_path, journals, read_journal
from drainfsm_kit.simulator.files import FileSystem
from drainfsm_kit.simulator.plan import JOB


class Disk:
    def __init__(self, files: FileSystem) -> None:
        self.files = files
        self.faults = files.faults
        self.damaged: set[int] = set()
        """Epochs whose journal was changed by somebody else."""

        self._opened: dict[int, list[Journal]] = {}

    @property
    def state_dir(self) -> Path:
        return self.files.top / "state"

    def open_journal(self, *, epoch: int) -> Journal:
        """Blocks. The writer's, or a later attempt's."""
        path = journal_path(self.state_dir, job_id=JOB, epoch=epoch)
        journal = Journal.open(path, job_id=JOB, epoch=epoch)
        self._opened.setdefault(epoch, []).append(journal)
        return journal

    @property
    def epochs(self) -> list[int]:
        """Of attempts that have a journal here."""
        return sorted(journals(self.state_dir, JOB).keys() | self._opened.keys())

    def records(self, epoch: int) -> Sequence[Record]:
        """What is on record: in the file, or, where it does not tell the truth any more, what
        was acknowledged."""
        if not self.doubtful(epoch):
            with contextlib.suppress(JournalCorruptError):  # ``forgotten`` tells
                return self._read(epoch)
        return max((j.records for j in self._opened.get(epoch, ())), key=len, default=[])

    def doubtful(self, epoch: int) -> bool:
        return epoch in self.damaged or self.files.betrayed

    def _read(self, epoch: int) -> list[Record]:
        path = journal_path(self.state_dir, job_id=JOB, epoch=epoch)
        return list(read_journal(path)) if path.exists() else []

    def forgotten(self, epoch: int) -> str:
        """What was acknowledged and is not in the file; empty: nothing."""
        try:
            found = self._read(epoch)
        except JournalCorruptError as error:
            return str(error)
        for journal in self._opened.get(epoch, ()):
            if found[: len(journal.records)] != journal.records:
                return f"{len(journal.records)} records were acknowledged, {len(found)} are there"
        return ""

    def damage(self, *, epoch: int, at: float) -> bool:
        """Somebody changes a byte in the middle; False: there is none."""
        path = journal_path(self.state_dir, job_id=JOB, epoch=epoch)
        data = path.read_bytes() if path.exists() else b""
        if not data:
            return False
        place = int(at * len(data))
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([data[place] ^ 0xFF]))
        self.damaged.add(epoch)
        return True
