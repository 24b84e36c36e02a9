"""A simulated local disk: the journals of one state directory, slow, hung, full or torn."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from drainfsm.core.codec import decode_lines
from drainfsm.core.records import Record
from drainfsm.errors import JournalLockedError
from drainfsm.log.frames import header_bytes, payloads, read_header
from drainfsm.log.journal import Journal
from drainfsm_kit.simulator.chance import Chance
from drainfsm_kit.simulator.fibers import Fibers, Resume
from drainfsm_kit.simulator.tally import Tally
from drainfsm_kit.simulator.timeline import US_PER_MS, Timeline
from drainfsm_kit.simulator.windows import Windows

if TYPE_CHECKING:
    from drainfsm_kit.simulator.process import Process

SYNC_US = (300, 4_000)
"""Of one fdatasync."""


class Disk:
    def __init__(self, timeline: Timeline, fibers: Fibers, chance: Chance, tally: Tally) -> None:
        self.files: dict[int, bytearray] = {}
        """Journals by epoch."""

        self._writers: dict[int, Process] = {}
        self.faults = Windows(timeline)
        """``full``, ``hung``, ``slow``."""

        self._timeline = timeline
        self._fibers = fibers
        self._chance = chance.stream("disk")
        self._tally = tally

    def open_journal(self, process: Process, *, job_id: str, epoch: int) -> SimulatedJournal:
        if (writer := self._writers.get(epoch)) is not None and not writer.dead:
            raise JournalLockedError(f"{path_of(epoch)} is written by another process")
        self._writers[epoch] = process
        data = self.files.setdefault(epoch, bytearray(header_bytes(job_id=job_id, epoch=epoch)))
        del data[self._whole(epoch) :]
        journal = SimulatedJournal(self, process, job_id=job_id, epoch=epoch)
        journal.records += self.records(epoch)
        return journal

    def unlock(self, epoch: int) -> None:
        self._writers.pop(epoch, None)

    def _whole(self, epoch: int) -> int:
        """Where a torn tail begins."""
        data = bytes(self.files[epoch])
        _, start = read_header(data)
        return max((end for end, _ in payloads(data, start)), default=start)

    def journals(self, state_dir: Path, job_id: str) -> Mapping[int, Path]:
        return {epoch: path_of(epoch) for epoch in sorted(self.files)}

    def read_journal(self, path: Path) -> Iterator[Record]:
        yield from self.records(int(path.stem))

    def records(self, epoch: int) -> Iterator[Record]:
        """What is on disk, up to a torn tail."""
        data = bytes(self.files[epoch])
        _, start = read_header(data)
        for _, payload in payloads(data, start):
            yield from decode_lines(payload)

    def append(self, process: Process, epoch: int, data: bytes) -> None:
        """Blocks, as a write and its fdatasync would.

        Raises:
            OSError: the disk is full.
        """
        failed: list[OSError] = []

        def arrange(resume: Resume) -> None:
            takes_us = self._chance.randint(*SYNC_US)
            if (slow := self.faults.active("slow")) is not None:
                self._tally.hit("journal_slow")
                takes_us += slow.amount * US_PER_MS
            self._timeline.after(takes_us, reached, resume)

        def reached(resume: Resume) -> None:
            if (hung := self.faults.active("hung")) is not None:
                self._tally.hit("journal_hung")
                self._timeline.at(hung.until_us, reached, resume)
            elif process.dead:
                if self._writers.get(epoch) is process:  # else somebody has opened it since
                    self._tear(epoch, data)
            elif self.faults.active("full") is not None:
                self._tally.hit("journal_full")
                failed.append(OSError(errno.ENOSPC, "No space left on device"))
                resume()
            else:
                self.files[epoch] += data
                resume()

        self._fibers.block(arrange)
        if failed:
            raise failed[0]

    def _tear(self, epoch: int, data: bytes) -> None:
        """The process died in the middle of a write: any part of it may be there."""
        kept = self._chance.randint(0, len(data))
        if 0 < kept < len(data):
            self._tally.hit("torn_tail")
        self.files[epoch] += data[:kept]


class SimulatedJournal(Journal):
    """The real one, on a simulated disk."""

    def __init__(self, disk: Disk, process: Process, *, job_id: str, epoch: int) -> None:
        super().__init__(path_of(epoch), -1, job_id=job_id, epoch=epoch)
        self._disk = disk
        self._process = process

    def write(self, data: bytes) -> None:
        self._disk.append(self._process, self.epoch, data)

    def close(self) -> None:
        self._disk.unlock(self.epoch)


def path_of(epoch: int) -> Path:
    return Path(f"{epoch:06d}.journal")
