"""The journal on a real file system."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drainfsm.core.events import UnknownFact
from drainfsm.core.records import Record
from drainfsm.errors import (
    JournalCorruptError,
    JournalLockedError,
    JournalUnusableError,
    RecordUnreadableError,
    StaleWriterError,
)
from drainfsm.log.frames import frame, header_bytes
from drainfsm.log.journal import Journal, JournalReader, journal_path, journals, read_journal
from drainfsm_kit.logs import records_of

TEN = records_of("job", 10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(tmp_path, job_id="job", epoch=1)


def opened(path: Path) -> Journal:
    return Journal.open(path, job_id="job", epoch=1)


def written(path: Path, *groups: list[Record]) -> bytes:
    journal = opened(path)
    for group in groups:
        journal.append(*group)
    journal.close()
    return path.read_bytes()


def test_what_was_appended_is_there_when_it_is_opened_again(path: Path) -> None:
    written(path, TEN[:1], TEN[1:4])
    journal = opened(path)
    assert (journal.records, journal.count, journal.dropped_bytes) == (TEN[:4], 4, 0)
    journal.append(*TEN[4:])
    assert journal.records == TEN
    assert list(read_journal(path)) == TEN
    journal.close()


def test_its_place_is_named_after_job_and_epoch(tmp_path: Path) -> None:
    assert journal_path(tmp_path, job_id="a", epoch=42) == tmp_path / "a/journal/000042.journal"


def test_journals_are_listed_by_epoch_and_nothing_else_is(tmp_path: Path) -> None:
    paths = {n: journal_path(tmp_path, job_id="job", epoch=n) for n in (10, 2, 1_234_567)}
    for epoch, path in paths.items():
        Journal.open(path, job_id="job", epoch=epoch).close()
    (paths[2].parent / "000003.journal.bak").touch()
    assert list(journals(tmp_path, "job").items()) == sorted(paths.items())
    assert journals(tmp_path, "another") == {}


def test_a_second_writer_is_refused_until_the_first_one_is_gone(path: Path) -> None:
    first = opened(path)
    with pytest.raises(JournalLockedError, match=r"000001\.journal is written by another process"):
        opened(path)
    first.append(TEN[0])
    first.close()
    second = opened(path)
    assert second.records == TEN[:1]
    second.close()


def test_the_lock_dies_with_its_process(path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from drainfsm.log.journal import Journal\n"
        "Journal.open(Path(sys.argv[1]), job_id='job', epoch=1); print('open', flush=True)\n"
        "time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(JournalLockedError):
            opened(path)
        holder.kill()
        holder.wait()
    opened(path).close()


def test_every_record_that_was_acknowledged_survives_sigkill(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from drainfsm.log.journal import Journal\n"
        "from drainfsm_kit.logs import records_of\n"
        "journal = Journal.open(Path(sys.argv[1]), job_id='job', epoch=1)\n"
        "for record in records_of('job', 100_000):\n"
        "    journal.append(record); print(record.follows, flush=True)"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(50):
            writer.stdout.readline()
        writer.kill()
        acknowledged = [int(line) for line in writer.stdout.read().split()]
    journal = opened(path)
    last = max(acknowledged, default=49)
    assert last <= journal.count - 1 <= last + 1
    assert journal.records == records_of("job", journal.count)
    journal.append(*records_of("job", 1, first=journal.count))
    journal.close()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(TEN[4], id="ahead"),
        pytest.param(TEN[1], id="repeated"),
        pytest.param(records_of("other", 1, first=2)[0], id="of another job"),
        pytest.param(records_of("job", 1, first=2, epoch=2)[0], id="of another epoch"),
    ],
)
def test_a_record_that_stands_elsewhere_is_refused_with_its_group(
    path: Path, wrong: Record
) -> None:
    before = written(path, TEN[:2])
    journal = opened(path)
    for group in ([wrong], [TEN[2], wrong]):
        with pytest.raises(StaleWriterError):
            journal.append(*group)
    assert journal.records == TEN[:2]
    assert path.read_bytes() == before
    journal.append(TEN[2])
    journal.close()


def test_the_journal_of_another_attempt_is_not_gone_on_with(path: Path) -> None:
    before = written(path, TEN)
    with pytest.raises(JournalCorruptError, match="of job job epoch 1, not of job job epoch 2"):
        Journal.open(path, job_id="job", epoch=2)
    assert path.read_bytes() == before


def test_records_of_one_append_survive_together_or_not_at_all(path: Path) -> None:
    whole, before = written(path, TEN[:2], TEN[2:4]), written(path.with_name("other"), TEN[:2])
    for length in range(len(before), len(whole)):
        path.write_bytes(whole[:length])
        journal = opened(path)
        assert journal.records == TEN[:2]
        assert journal.dropped_bytes == length - len(before)
        journal.close()
        assert path.read_bytes() == before


def test_one_append_is_one_write_and_one_sync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    journal = opened(path)
    pwrite, fdatasync = os.pwrite, os.fdatasync

    def write(fd: int, data: bytes, offset: int) -> int:
        calls.append("write")
        return pwrite(fd, data, offset)

    def sync(fd: int) -> None:
        calls.append("sync")
        fdatasync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write)
        patch.setattr(os, "fdatasync", sync)
        journal.append(*TEN)
        journal.append()
    assert calls == ["write", "sync"]
    assert list(read_journal(path)) == TEN
    journal.close()


def test_a_full_disk_leaves_no_trace_and_the_append_may_be_tried_again(path: Path) -> None:
    before = written(path, TEN[:2])
    journal = opened(path)
    # Past the limit the kernel writes short, then refuses; Python ignores the signal that it sends.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as refused:
            journal.append(TEN[2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.errno == errno.EFBIG
    assert journal.records == TEN[:2]
    assert path.read_bytes() == before
    journal.append(TEN[2])
    assert list(read_journal(path)) == TEN[:3]
    journal.close()


def test_a_failed_sync_takes_the_record_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written(path, TEN[:2])
    journal = opened(path)
    broken = [OSError(errno.EIO, "Input/output error")]
    fdatasync = os.fdatasync

    def sync(fd: int) -> None:
        if broken:
            raise broken.pop()
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    with pytest.raises(OSError, match="Input/output error"):
        journal.append(TEN[2])
    assert path.read_bytes() == before
    journal.append(TEN[2])
    assert list(read_journal(path)) == journal.records == TEN[:3]
    journal.close()


def test_a_journal_that_cannot_take_a_record_back_takes_none_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(path)
    with monkeypatch.context() as patch:

        def sync(fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(os, "fdatasync", sync)
        with pytest.raises(OSError, match="Input/output error"):
            journal.append(TEN[0])
    with pytest.raises(OSError, match="unusable since an earlier write failed"):
        journal.append(TEN[0])
    assert journal.records == []
    journal.close()


def test_readers_of_a_growing_journal_always_see_a_prefix(path: Path) -> None:
    journal = opened(path)
    many = records_of("job", 400)

    def write() -> None:
        for record in many:
            journal.append(record)

    writer = threading.Thread(target=write)
    writer.start()
    seen = [0]
    while seen[-1] < len(many):
        found = list(read_journal(path))
        assert found == many[: len(found)]
        seen.append(len(found))
    writer.join()
    journal.close()
    assert seen == sorted(seen)


@pytest.mark.parametrize("data", [b"hello world", b"{}", b"\x7fELF" + bytes(200)])
def test_a_file_that_is_no_journal_is_refused_and_left_alone(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(JournalCorruptError, match=r"000001\.journal: not a journal"):
        opened(path)
    with pytest.raises(JournalCorruptError, match="not a journal"):
        list(read_journal(path))
    assert path.read_bytes() == data


def test_a_crash_while_it_was_created_leaves_an_empty_journal(path: Path) -> None:
    header = header_bytes(job_id="job", epoch=1)
    path.parent.mkdir(parents=True)
    for torn in (b"", header[:5], header[:-1], bytes(100)):
        path.write_bytes(torn)
        assert list(read_journal(path)) == []
        journal = opened(path)
        assert (journal.count, journal.dropped_bytes) == (0, len(torn))
        journal.append(TEN[0])
        journal.close()
        assert list(read_journal(path)) == TEN[:1]


def test_a_newer_format_or_record_asks_for_an_update(path: Path) -> None:
    written(path, [msgspec.structs.replace(TEN[0], v=99)])
    with pytest.raises(RecordUnreadableError, match=r"000001\.journal: .*version 99.*update it"):
        opened(path)
    header = header_bytes(job_id="job", epoch=1)
    newer = msgspec.json.encode({"format_version": 9, "job_id": "job", "epoch": 1})
    magic = header[: header.index(b"\n") + 1]
    path.write_bytes(magic + frame(newer))
    with pytest.raises(JournalCorruptError, match=r"journal format 9; .* update it"):
        opened(path)


def test_an_event_of_an_unknown_kind_is_kept_even_with_line_breaks_in_it(path: Path) -> None:
    fact = UnknownFact(kind="new", body=msgspec.Raw(b'{"kind":"new",\r\n "x": "a\\nb"}'))
    record = msgspec.structs.replace(TEN[0], events=(fact,))
    written(path, [record], TEN[1:2])
    found = list(read_journal(path))
    assert [r.id for r in found] == [r.id for r in TEN[:2]]
    (kept,) = found[0].events
    assert isinstance(kept, UnknownFact)
    assert msgspec.json.decode(kept.body) == {"kind": "new", "x": "a\nb"}


def test_a_missing_journal_says_so(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_journal(path))


def test_a_closed_journal_takes_nothing(path: Path) -> None:
    journal = opened(path)
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match="is closed"):
        journal.append(TEN[0])


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_directories_holds_a_journal(
    code: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_fsync, refused = os.fsync, []

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):  # CIFS, some FUSE
            refused.append(fd)
            raise OSError(code, os.strerror(code))
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    written(path, TEN[:2])
    assert list(read_journal(path)) == TEN[:2]
    assert refused


def test_a_directory_that_is_not_durable_for_another_reason_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(JournalUnusableError, match="cannot open the journal"):
        opened(path)


def test_a_reader_reads_on_from_where_it_stopped(path: Path) -> None:
    journal = opened(path)
    reader = JournalReader(path)
    assert reader.read_on() == []
    journal.append(*TEN[:3])
    assert reader.read_on() == TEN[:3]
    assert reader.read_on() == []
    journal.append(TEN[3])
    with path.open("ab") as file:
        file.write(frame(b"half a frame")[:-4])
    assert reader.read_on() == TEN[3:4]
    journal.append(*TEN[4:])
    assert reader.read_on() == TEN[4:]
    journal.close()


def test_a_reader_does_not_open_what_has_not_grown(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(path, TEN[:3])
    reader, real_open, opened_count = JournalReader(path), Path.open, 0

    def counted(self: Path, *given: Any, **named: Any) -> Any:
        nonlocal opened_count
        opened_count += 1
        return real_open(self, *given, **named)

    monkeypatch.setattr(Path, "open", counted)
    assert [reader.read_on() for _ in range(3)] == [TEN[:3], [], []]
    assert opened_count == 1
    written(path, TEN[3:])
    assert reader.read_on() == TEN[3:]


def test_a_reader_gives_what_stands_before_damage_and_then_says_so(path: Path) -> None:
    good = len(written(path, TEN[:3]))
    data = bytearray(written(path, TEN[3:4], TEN[4:]))
    data[good + 20] ^= 1
    path.write_bytes(data)
    reader = JournalReader(path)
    assert reader.read_on() == TEN[:3]
    for _ in range(2):
        with pytest.raises(JournalCorruptError, match=str(path)):
            reader.read_on()


def test_a_reader_sees_that_it_is_another_file(path: Path) -> None:
    journal = opened(path)
    journal.append(*TEN[:3])
    reader = JournalReader(path)
    assert reader.read_on() == TEN[:3]
    journal.close()
    data = path.read_bytes()
    os.truncate(path, len(data) - 1)
    assert reader.read_on() is None
    other = path.with_name("other")
    other.write_bytes(data + data)
    other.replace(path)
    assert reader.read_on() is None
