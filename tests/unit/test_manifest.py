"""What makes a generation complete, as pure checks."""

from __future__ import annotations

import pytest

from drainfsm.core.manifest import Entry, verify_reported, verify_stored
from drainfsm.errors import ManifestMismatchError


def _entry(name: str, rank: int = 0, size_bytes: int = 5) -> Entry:
    return Entry(name=name, size_bytes=size_bytes, checksum="xxh3_128:00", rank=rank)


ENTRIES = [_entry("a", 0), _entry("sub/b", 1), _entry("c", 1)]
COUNTS = {0: 1, 1: 2}


def test_a_complete_report_is_accepted() -> None:
    verify_reported(ENTRIES, ranks=range(2), files_per_rank=COUNTS)
    verify_stored(ENTRIES, {"a": 5, "sub/b": 5, "c": 5})


@pytest.mark.parametrize(
    ("entries", "ranks", "counts", "says"),
    [
        (ENTRIES, 3, COUNTS, r"no report from rank\(s\) \[2\]"),
        (ENTRIES, 1, COUNTS, r"rank\(s\) \[1\] that are not in the job"),
        ([*ENTRIES, _entry("a", 1)], 2, {0: 1, 1: 3}, "a was reported twice"),
        (ENTRIES[:2], 2, COUNTS, "rank 1 announced 2 files and listed 1"),
        ([*ENTRIES, _entry("d", 7)], 2, COUNTS, "unknown rank 7"),
        ([_entry("../a"), *ENTRIES[1:]], 2, COUNTS, "leaves the generation"),
        ([_entry("/a"), *ENTRIES[1:]], 2, COUNTS, "leaves the generation"),
        ([_entry(""), *ENTRIES[1:]], 2, COUNTS, "leaves the generation"),
    ],
)
def test_an_incomplete_or_odd_report_is_refused(
    entries: list[Entry], ranks: int, counts: dict[int, int], says: str
) -> None:
    with pytest.raises(ManifestMismatchError, match=says):
        verify_reported(entries, ranks=range(ranks), files_per_rank=counts)


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ({"a": 5, "c": 5}, "sub/b is missing"),
        ({"a": 5, "sub/b": 4, "c": 5}, "sub/b has 4 bytes, not 5"),
        ({"a": 5, "sub/b": 5, "c": 5, "x": 0}, r"unexpected file\(s\) x"),
    ],
)
def test_what_the_store_lists_must_be_exactly_what_was_reported(
    stored: dict[str, int], says: str
) -> None:
    with pytest.raises(ManifestMismatchError, match=says):
        verify_stored(ENTRIES, stored)
