"""Whatever happens to the bytes of a journal, it says what is left, or that it was damaged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainfsm.core.records import Record
from drainfsm.errors import JournalCorruptError
from drainfsm.log.journal import Journal, read_journal
from drainfsm_kit.logs import records_of

GROUPS = st.lists(st.integers(1, 3), min_size=1, max_size=5)
"""Records in each append."""


class Written:
    """A journal, and where each of its appends ended."""

    def __init__(self, path: Path, groups: list[int]) -> None:
        self.path = path
        self.records: list[Record] = []
        journal = opened(path)
        self.ends = [path.stat().st_size]
        self.counts = [0]
        for count in groups:
            more = records_of("job", count, first=journal.count)
            journal.append(*more)
            self.records += more
            self.ends.append(path.stat().st_size)
            self.counts.append(len(self.records))
        journal.close()
        self.data = path.read_bytes()

    def whole_before(self, offset: int) -> tuple[int, list[Record]]:
        """End of the last append that lies wholly before the offset, and the records till there."""
        whole = max(i for i, end in enumerate(self.ends) if end <= max(offset, self.ends[0]))
        return self.ends[whole], self.records[: self.counts[whole]]


def opened(path: Path) -> Journal:
    return Journal.open(path, job_id="job", epoch=1)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def written(directory: Path, groups: list[int]) -> Written:
    path = directory / "000001.journal"
    path.unlink(missing_ok=True)
    return Written(path, groups)


def expect(journal: Written, records: list[Record], *, good_bytes: int) -> None:
    """Reading gives the records; so does opening, which cuts the rest off and goes on."""
    size = journal.path.stat().st_size
    assert list(read_journal(journal.path)) == records
    again = opened(journal.path)
    assert again.records == records
    assert again.dropped_bytes == size - good_bytes
    more = records_of("job", 1, first=again.count, writer="later")
    again.append(*more)
    again.close()
    assert list(read_journal(journal.path)) == records + more


def until_damage(path: Path) -> Iterator[Record]:
    with pytest.raises(JournalCorruptError):
        yield from read_journal(path)


@settings(deadline=None)
@given(groups=GROUPS, data=st.data())
def test_a_truncated_journal_has_exactly_the_appends_before_the_cut(
    directory: Path, groups: list[int], data: st.DataObject
) -> None:
    journal = written(directory, groups)
    cut = data.draw(st.integers(journal.ends[0], len(journal.data)))
    journal.path.write_bytes(journal.data[:cut])
    good_bytes, records = journal.whole_before(cut)
    expect(journal, records, good_bytes=good_bytes)


@settings(deadline=None)
@given(groups=GROUPS, data=st.data())
def test_damage_in_the_last_append_loses_only_that_one(
    directory: Path, groups: list[int], data: st.DataObject
) -> None:
    journal = written(directory, groups)
    start = journal.ends[-2]
    garbage = data.draw(st.binary(min_size=1, max_size=64).filter(any))
    offset = data.draw(st.integers(start, len(journal.data) - 1))
    damaged = bytearray(journal.data)
    for i, byte in enumerate(garbage[: len(damaged) - offset]):
        damaged[offset + i] ^= byte
    if damaged == journal.data:
        damaged[offset] ^= 1
    journal.path.write_bytes(damaged)
    expect(journal, journal.records[: journal.counts[-2]], good_bytes=start)


@settings(deadline=None)
@given(groups=GROUPS, tail=st.binary(min_size=1, max_size=200) | st.integers(1, 9000).map(bytes))
def test_garbage_behind_the_last_append_is_cut_off(
    directory: Path, groups: list[int], tail: bytes
) -> None:
    journal = written(directory, groups)
    journal.path.write_bytes(journal.data + tail)
    expect(journal, journal.records, good_bytes=len(journal.data))


@settings(deadline=None)
@given(groups=GROUPS, data=st.data())
def test_damage_before_the_last_append_is_refused_and_left_alone(
    directory: Path, groups: list[int], data: st.DataObject
) -> None:
    journal = written(directory, groups)
    offset = data.draw(st.integers(0, journal.ends[-2] - 1))
    damaged = bytearray(journal.data)
    damaged[offset] ^= data.draw(st.integers(1, 255))
    journal.path.write_bytes(damaged)
    with pytest.raises(JournalCorruptError):
        opened(journal.path)
    assert list(until_damage(journal.path)) == journal.whole_before(offset)[1]
    assert journal.path.read_bytes() == damaged


@settings(deadline=None)
@given(groups=st.lists(st.integers(1, 3), min_size=2, max_size=5), data=st.data())
def test_a_piece_cut_out_before_the_last_append_is_noticed(
    directory: Path, groups: list[int], data: st.DataObject
) -> None:
    journal = written(directory, groups)
    places = st.sampled_from(journal.ends[:-1]) | st.integers(journal.ends[0], journal.ends[-2])
    begin, end = sorted(data.draw(st.lists(places, min_size=2, max_size=2, unique=True)))
    journal.path.write_bytes(journal.data[:begin] + journal.data[end:])
    with pytest.raises(JournalCorruptError):
        opened(journal.path)
