"""Attempts that are read one at a time show what they show when all of them are held."""

from __future__ import annotations

import contextlib
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainfsm.cli.main import main
from drainfsm.core.codec import encode_lines
from drainfsm.core.events import AttemptLost
from drainfsm.core.records import Record
from drainfsm.errors import ConfigError
from drainfsm.log.journal import Journal, journal_path, journals
from drainfsm.testing.scenario import NOON_UNIX_MS
from drainfsm.views.attempt_logs import attempts_in, attempts_of_file, attempts_of_journals
from drainfsm.views.history import by_attempt, read_file, read_journals
from drainfsm.views.journals import GrowingJournals
from drainfsm.views.raw_log import journal_lines
from drainfsm.views.replay import AttemptReplay, replay_job
from drainfsm_kit.logs import records_of

JOB = "job"
Output = pytest.CaptureFixture[str]


def lost(epoch: int, *, by: int, follows: int) -> Record:
    return Record(
        id=f"lost-{epoch}-{by}",
        job_id=JOB,
        epoch=by,
        follows=follows,
        at_unix_ms=NOON_UNIX_MS,
        events=(AttemptLost(epoch=epoch, reason="silent"),),
    )


LOG = [
    *records_of(JOB, 3),
    lost(1, by=2, follows=0),
    *records_of(JOB, 4, epoch=2, first=1),
    *records_of("other", 2),
    *records_of(JOB, 2, epoch=4),
]


def of_file(path: Path, records: list[Record], epoch: int | None = None) -> list[AttemptReplay]:
    path.write_bytes(encode_lines(records))
    with attempts_of_file(path, job_id=None) as attempts:
        return list(attempts.replays(epoch))


@given(order=st.permutations(range(len(LOG))), epoch=st.sampled_from([None, 1, 2, 4]))
def test_a_file_in_any_order_shows_the_same(
    order: list[int], epoch: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "mixed.jsonl"
    records = [LOG[place] for place in order]
    whole = replay_job(by_attempt(records))
    wanted = [one for one in whole if epoch in (None, one.final.epoch)]
    assert of_file(path, records, epoch) == wanted
    assert list(attempts_in(read_file(path)).replays(epoch)) == wanted


def test_the_attempt_behind_it_says_that_it_was_lost_where_only_one_is_asked_for(
    tmp_path: Path,
) -> None:
    (one,) = of_file(tmp_path / "log.jsonl", LOG[:4], epoch=1)
    assert one.final.lost == "silent (found by epoch 2)"


def test_an_attempt_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such attempt; there are 1, 2, 4"):
        of_file(tmp_path / "log.jsonl", LOG, epoch=3)


def test_what_is_no_record_is_named_and_the_rest_is_shown(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(LOG[:2]) + b"no record\n\n" + encode_lines(LOG[2:3]))
    assert main(["replay", "--file", str(path)]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("healthy_step_reached") == 3
    assert "line 3" in shown.err


def test_journals_are_read_one_by_one(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        path = journal_path(tmp_path, job_id=JOB, epoch=epoch)
        journal = Journal.open(path, job_id=JOB, epoch=epoch)
        journal.append(*records_of(JOB, 3, epoch=epoch))
        journal.close()
    damaged = journal_path(tmp_path, job_id=JOB, epoch=2)
    data = bytearray(damaged.read_bytes())
    data[60] ^= 1
    damaged.write_bytes(data)
    whole = read_journals(tmp_path, job_id=JOB)
    attempts = attempts_of_journals(tmp_path, job_id=JOB)
    assert list(attempts.replays()) == replay_job(whole.logs)
    assert attempts.damage == whole.damage != ""
    assert [one.final.epoch for one in attempts.replays(3)] == [3]


def test_a_job_of_many_attempts_is_never_held_as_a_whole(tmp_path: Path) -> None:
    def peak_bytes(attempt_count: int) -> int:
        path = tmp_path / f"{attempt_count}.jsonl"
        with path.open("wb") as file:
            for epoch in range(1, attempt_count + 1):
                file.write(encode_lines(records_of(JOB, 20, epoch=epoch)))
        tracemalloc.start()
        try:
            with attempts_of_file(path, job_id=JOB) as attempts:
                assert sum(1 for _ in attempts.replays()) == attempt_count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(2)  # whatever is loaded at first
    per_record_bytes = (peak_bytes(500) - peak_bytes(50)) / (450 * 20)
    assert per_record_bytes < 100, "eight, and the names of the attempts; a record has 1,000"


def test_a_journal_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """It belongs to another user, say."""
    for epoch in (1, 3):
        path = journal_path(tmp_path, job_id=JOB, epoch=epoch)
        with contextlib.closing(Journal.open(path, job_id=JOB, epoch=epoch)) as journal:
            journal.append(*records_of(JOB, 2, epoch=epoch))
    unreadable = journal_path(tmp_path, job_id=JOB, epoch=2)
    unreadable.mkdir()
    found = read_journals(tmp_path, job_id=JOB)
    assert [record.epoch for record in found.records] == [1, 1, 3, 3]
    assert str(unreadable) in found.damage
    raw = journal_lines(tmp_path, job_id=JOB)
    assert (len(raw.lines), str(unreadable) in raw.damage) == (4, True)
    growing = GrowingJournals(lambda: journals(tmp_path, JOB).values())
    assert growing.poll()
    assert growing.projection.jobs[JOB].newest.state.attempt.epoch == 3
    assert growing.projection.unreadable_count == 1
