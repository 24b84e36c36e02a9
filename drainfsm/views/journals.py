"""A projection of journals that are being written, each byte of them read once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from drainfsm.errors import LogError
from drainfsm.log.journal import JournalReader
from drainfsm.views.projections import Projection


class GrowingJournals:
    """``paths``: which there are now; oldest first."""

    def __init__(self, paths: Callable[[], Iterable[Path]]) -> None:
        self.projection = Projection()
        self._paths = paths
        self._readers: dict[Path, JournalReader] = {}
        self._damaged: set[Path] = set()

    def poll(self) -> bool:
        """Read what has come; whether anything has.

        Raises:
            OSError: a journal cannot be read.
        """
        changed = False
        for path in self._paths():
            if path in self._damaged:
                continue
            with contextlib.suppress(FileNotFoundError):  # it was cleared away meanwhile
                while found := self._read(path):
                    changed = True
                if found is None:
                    self._begin_anew()
                    self.poll()
                    return True
        return changed

    def _read(self, path: Path) -> bool | None:
        """None: it is not the journal any more that was read."""
        reader = self._readers.setdefault(path, JournalReader(path))
        try:
            records = reader.read_on()
        except (LogError, PermissionError, IsADirectoryError) as error:
            self._damaged.add(path)
            self.projection.read_garbage(str(error))
            return False
        if records is None:
            return None
        for record in records:
            self.projection.read(record)
        return bool(records)

    def _begin_anew(self) -> None:
        self.projection = Projection()
        self._readers.clear()
        self._damaged.clear()
