"""Whatever is done to a log, ``drainfsm verify`` says what and where; and to one that was left
alone, nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core.chain import LogHead, line_digest
from drainfsm.core.codec import decode, encode, encode_lines
from drainfsm.core.events import AttemptStarted
from drainfsm.core.notice import Cause
from drainfsm.core.records import Record
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.log.journal import Journal, journal_path
from drainfsm.machine import DrainMachine
from drainfsm.testing.scenario import NOON_UNIX_MS, Scenario
from drainfsm.views.verify import Anchor, RawLine, Verified, verify_attempts
from drainfsm_kit.logs import chained, records_of

COUNT = 8


LOG = [encode(record) for record in chained(records_of("job", COUNT))]
HEAD = LogHead(count=COUNT, digest=line_digest(LOG[-1]))
Log = list[bytes]


def verified(log: Log, *anchors: LogHead) -> Verified:
    lines = [RawLine(f"line {number}", data) for number, data in enumerate(log, start=1)]
    (found,) = verify_attempts(lines, {1: [Anchor("the store", head) for head in anchors]})
    return found


def told(log: Log, *anchors: LogHead) -> list[tuple[str, int | None]]:
    return [(one.kind, one.position) for one in verified(log, *anchors).findings]


def changed(line: bytes) -> bytes:
    """The same record, of another time: its place and its link stay."""
    record = decode(line)
    return encode(replace(record, at_unix_ms=record.at_unix_ms + 1))


def test_a_log_that_was_left_alone_is_as_written() -> None:
    found = verified(LOG, HEAD, LogHead(count=3, digest=line_digest(LOG[2])))
    assert (found.findings, found.chained, found.head) == ((), True, HEAD)
    assert found.anchor_count == 2


@pytest.mark.parametrize("position", range(COUNT))
def test_a_removed_record_is_missed(position: int) -> None:
    log = LOG[:position] + LOG[position + 1 :]
    last = position == COUNT - 1
    assert told(log) == ([] if last else [("removed", position)])
    assert told(log, HEAD) == [("removed", position)]


@pytest.mark.parametrize("position", range(COUNT))
def test_a_changed_record_is_found(position: int) -> None:
    log = list(LOG)
    log[position] = changed(log[position])
    last = position == COUNT - 1
    assert told(log) == ([] if last else [("changed", position)])
    assert told(log, HEAD) == [("changed", position)]


@pytest.mark.parametrize("position", range(1, COUNT))
def test_an_inserted_record_is_found_wherever_it_stands(position: int) -> None:
    before = line_digest(LOG[position - 1])
    record = records_of("job", 1, first=position, writer="forged")[0]
    for forged in (record, replace(record, before=before)):
        for place in (position, position + 1, COUNT):
            log = [*LOG[:place], encode(forged), *LOG[place:]]
            expected = [("inserted", position)]
            assert told(log, HEAD) == expected, (position, place)


@pytest.mark.parametrize("follows", [-1, -(2**62)])
def test_an_inserted_record_before_the_first_is_found(follows: int) -> None:
    forged = encode(replace(records_of("job", 1, writer="forged")[0], follows=follows, before=""))
    assert told([*LOG, forged], HEAD) == [("inserted", follows)]
    assert told([forged]) == [("inserted", follows)]


def test_reordered_records_are_found() -> None:
    assert told([LOG[0], LOG[2], LOG[1], *LOG[3:]]) == [("reordered", 2)] or told(
        [LOG[0], LOG[2], LOG[1], *LOG[3:]]
    ) == [("reordered", 1)]
    assert told(LOG[::-1])


def test_a_log_that_was_written_anew_differs_from_what_the_store_knows() -> None:
    anew = [
        encode(one)
        for one in chained([replace(decode(one), id=f"x{n}") for n, one in enumerate(LOG)])
    ]
    assert told(anew) == []
    assert told(anew, HEAD) == [("changed", COUNT - 1)]


def test_links_that_were_taken_off_are_told_by_the_store() -> None:
    bare = [encode(replace(decode(line), before=UNSET)) for line in LOG]
    found = verified(bare)
    assert (found.chained, found.findings) == (False, ())
    assert told(bare, HEAD) == [("changed", COUNT - 1)]
    some = [*LOG[:3], bare[3], *LOG[4:]]
    assert ("changed", 3) in told(some)


def test_what_is_stored_twice_is_no_change() -> None:
    """A server that came back with less than it had is told again, and may keep a late one."""
    found = verified([LOG[0], LOG[2], LOG[0], LOG[1], *LOG[2:], LOG[5]])
    assert found.findings == ()
    assert found.repeated_count == 3


def test_what_is_no_record_or_of_another_job_is_named() -> None:
    other = encode(records_of("other", 1)[0])
    lines = [RawLine(f"line {n}", data) for n, data in enumerate([b'{"seq":1}', *LOG, other])]
    (found,) = verify_attempts(lines, {}, job_id="job")
    assert [(one.kind, one.where) for one in found.findings] == [
        ("unreadable", "line 0"),
        ("inserted", f"line {COUNT + 1}"),
    ]


def test_an_attempt_whose_log_is_gone_is_told_by_the_store() -> None:
    first, second = verify_attempts(
        [RawLine("line", data) for data in LOG], {1: [Anchor("s", HEAD)], 2: [Anchor("s", HEAD)]}
    )
    assert first.findings == ()
    (gone,) = second.findings
    assert (gone.kind, second.epoch) == ("removed", 2)


def _naming_the_one_before(epoch: int) -> list[Record]:
    """An attempt's log that begins with what the one before left."""
    head = LogHead(count=COUNT, digest="0" * 64)
    first, *others = Scenario(epoch=epoch).history
    (started,) = first.events
    assert isinstance(started, AttemptStarted)
    restore = RequeueRecord(
        job_id="job",
        epoch=epoch - 1,
        cause=Cause("test"),
        generation_id=None,
        manifest_digest=None,
        step=None,
        world_size=1,
        capacity=Capacity(node_count=1),
        recorded_unix_ms=NOON_UNIX_MS,
        log=head,
    )
    started = replace(started, restore=restore)
    return chained([replace(first, events=(started,)), *others])


@pytest.mark.parametrize(
    ("epochs", "missing"), [((1, 2, 3), []), ((1, 3), [2]), ((3,), []), ((1, 3, 5), [2, 4])]
)
def test_a_whole_attempt_that_is_gone_is_told_by_the_one_behind_it(
    epochs: tuple[int, ...], missing: list[int]
) -> None:
    """Where nothing is forgotten; the first of a log may have others before it elsewhere."""
    lines = [
        RawLine("message", encode(record))
        for epoch in epochs
        for record in _naming_the_one_before(epoch)
    ]
    found = {one.epoch: one for one in verify_attempts(lines, {}, keeps_all=True)}
    empty = [epoch for epoch, one in found.items() if not one.record_count]
    assert empty == missing
    for epoch in missing:
        (finding,) = found[epoch].findings
        assert finding.kind == "removed"
        assert f"the start of attempt {epoch + 1} knows {COUNT} records" in finding.detail
    assert all(one.record_count for one in verify_attempts(lines, {}))


@given(st.data())
def test_no_damage_goes_unseen(data: st.DataObject) -> None:
    """Any number of removals, changes, swaps and forgeries, before the last record or at it."""
    log = list(LOG)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(0, len(log) - 1)))
        match data.draw(st.sampled_from(["remove", "change", "swap", "forge"])):
            case "remove" if log:
                del log[place]
            case "change" if log:
                log[place] = changed(log[place])
            case "swap" if len(log) > 1:
                log[place - 1], log[place] = log[place], log[place - 1]
            case "forge":
                first = data.draw(st.integers(0, COUNT))
                log.insert(place, encode(records_of("job", 1, first=first, writer="forged")[0]))
    if log and log != LOG:
        assert told(log, HEAD)


def test_a_machine_chains_what_it_writes() -> None:
    machine = DrainMachine(job_id="job", world_size=2, now_unix_ms=lambda: NOON_UNIX_MS)
    machine.notice(deadline_unix_ms=NOON_UNIX_MS + 60_000)
    assert len(machine.history) > 1
    (found,) = verify_attempts([RawLine("", encode(record)) for record in machine.history], {})
    assert (found.chained, found.findings) == (True, ())


# --- the command --------------------------------------------------------------------------------


def journal_of(state_dir: Path, log: Log) -> None:
    path = journal_path(state_dir, job_id="job", epoch=1)
    journal = Journal.open(path, job_id="job", epoch=1)
    journal.append(*[decode(line) for line in log])
    assert journal.head == LogHead(count=len(log), digest=line_digest(log[-1]))
    journal.close()


def test_a_journal_and_its_export_are_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal_of(tmp_path, LOG)
    here = ["--job", "job", "--state-dir", str(tmp_path)]
    assert main(["verify", *here]) == 0
    assert "job attempt 1: 8 records, chained: as written" in capsys.readouterr().out
    exported = tmp_path / "log.jsonl"
    assert main(["export", *here, "-o", str(exported)]) == 0
    assert exported.read_bytes() == b"".join(line + b"\n" for line in LOG)
    assert main(["verify", "--file", str(exported), "--json"]) == 0
    capsys.readouterr()

    lines = exported.read_bytes().splitlines()
    exported.write_bytes(b"\n".join([*lines[:2], changed(lines[2]), *lines[3:]]))
    assert main(["verify", "--file", str(exported)]) == 1
    assert "changed record 2 (line 3): record 3 (line 4) was written behind another" in (
        capsys.readouterr().out
    )
    assert main(["verify", "--file", str(exported), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == "changed"


def test_a_log_from_before_there_was_a_chain_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(encode_lines(records_of("job", 3)))
    assert main(["verify", "--file", str(file)]) == 0
    assert "3 records, not chained: nothing to compare" in capsys.readouterr().out
    assert main(["verify", "--file", str(tmp_path / "gone")]) == 2
    assert main(["verify", "--job", "job", "--state-dir", str(tmp_path)]) == 2


def test_a_journal_that_is_damaged_is_verified_up_to_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal_of(tmp_path, LOG[:1])
    path = journal_path(tmp_path, job_id="job", epoch=1)
    journal = Journal.open(path, job_id="job", epoch=1)
    journal.append(decode(LOG[1]))
    data = path.read_bytes()
    journal.append(decode(LOG[2]))
    journal.close()
    path.write_bytes(data[:-5] + b"xxxxx" + path.read_bytes()[len(data) :])
    assert main(["verify", "--job", "job", "--state-dir", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "1 records, chained" in told.out
    assert "fails its checksum" in told.err
