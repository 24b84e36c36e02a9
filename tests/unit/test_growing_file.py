"""An exported file that grows, is cut, replaced, or ends in the middle of a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainfsm.core.codec import decode, encode, encode_lines
from drainfsm.core.records import Record
from drainfsm.testing.scenario import Scenario
from drainfsm.views import growing_file
from drainfsm.views.growing_file import GrowingFile, projected
from drainfsm.views.history import read_file
from drainfsm.views.projections import Projection


def history(job_id: str = "job") -> list[bytes]:
    """Lines of a drain that is saved."""
    return [encode(record) + b"\n" for record in Scenario(job_id=job_id).saving().history]


def counts(projection: Projection) -> dict[str, int]:
    """Records by job, and that each of them counted."""
    assert all(not line.note for job in projection.jobs.values() for line in job.events)
    return {job_id: job.version for job_id, job in projection.jobs.items()}


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_it_is_the_same_in_pieces_of_any_size(tmp_path: Path) -> None:
    whole = b"".join((*history("a"), b"no record\n", *history("b")))
    path, growing = tmp_path / "log.jsonl", GrowingFile(tmp_path / "log.jsonl")
    path.touch()
    for size in (1_000, 37, 1_000_000):
        path.write_bytes(b"")
        growing.poll()
        for first in range(0, len(whole), size):
            append(path, whole[first : first + size])
            assert growing.poll()
            assert growing.projection.unreadable_count <= 1, "a line was taken for whole"
        assert counts(growing.projection) == counts(projected(read_file(path)))
        assert growing.projection.unreadable_count == 1
        assert "log.jsonl, line" in growing.projection.unreadable[0]
        assert str(tmp_path) not in growing.projection.unreadable[0]


def test_what_was_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, read = history(), list[bytes]()

    def counted(data: bytes) -> Record:
        read.append(data)
        return decode(data)

    monkeypatch.setattr(growing_file, "decode", counted)
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines[0])
    growing = GrowingFile(path)
    for line in (*lines[1:], b""):
        assert growing.poll()
        append(path, line)
    assert not growing.poll()
    assert [data + b"\n" for data in read] == lines
    assert counts(growing.projection) == {"job": len(lines)}


@pytest.mark.parametrize("longer", [False, True])
def test_another_file_in_its_place_is_read_anew(tmp_path: Path, longer: bool) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(history("first")))
    growing = GrowingFile(path)
    assert growing.poll()
    before = growing.projection
    others = [*history("other-a"), *(history("other-b") if longer else [])]
    (tmp_path / "new").write_bytes(b"".join(others[: None if longer else 1]))
    if longer:
        path.write_bytes((tmp_path / "new").read_bytes())
    else:
        (tmp_path / "new").rename(path)
    assert growing.poll()
    assert growing.projection is not before
    assert set(counts(growing.projection)) == ({"other-a", "other-b"} if longer else {"other-a"})


def test_a_line_without_an_end_is_told_once_nobody_writes_on(tmp_path: Path) -> None:
    lines = history()
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    growing = GrowingFile(path)
    assert growing.poll()
    assert growing.projection.unreadable_count == 0
    assert growing.poll()
    assert growing.projection.unreadable_count == 1
    assert not growing.poll()
    append(path, lines[-1][20:])  # after all
    assert growing.poll()
    assert growing.projection.unreadable_count == 0
    assert counts(growing.projection) == {"job": len(lines)}


def test_a_last_record_without_a_line_break_counts_once(tmp_path: Path) -> None:
    lines = history()
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(Scenario().saving().history).removesuffix(b"\n"))
    growing = GrowingFile(path)
    assert growing.poll()
    assert counts(growing.projection) == {"job": len(lines)}
    append(path, b"\n")
    growing.poll()
    assert counts(growing.projection) == {"job": len(lines)}
    assert growing.projection.unreadable_count == 0
