"""What an attempt looks at before it claims the job: afterwards whoever ran it is fenced."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.core.decider import decide
from drainfsm.core.events import HealthyStepReached
from drainfsm.core.notice import Cause
from drainfsm.core.records import Record
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import Attempt, State
from drainfsm.errors import ConfigError, FencedError, JournalUnusableError, RestoreRefusedError
from drainfsm.log.journal import Journal, journal_path, read_journal
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt import ClaimedAttempt, claim_attempt
from drainfsm.store import CommitLog, open_store


def claimed(
    store: Path, state_dir: Path, *, job: str = "job", create: bool = False
) -> ClaimedAttempt:
    config = RunConfig(
        job=job, store=str(store), state_dir=state_dir, command=("true",), create_store=create
    )
    attempt = claim_attempt(config, Clock(), warn=lambda text: None)
    events = decide(State(Attempt(job_id=job, epoch=attempt.epoch)), attempt.start, now_unix_ms=1)
    started = Record(
        id="a", job_id=job, epoch=attempt.epoch, follows=0, at_unix_ms=1, events=events
    )
    attempt.journal.append(started)
    attempt.journal.close()
    return attempt


def epoch_of(store: Path) -> int:
    return CommitLog(open_store(str(store)), job_id="job").head().epoch


@pytest.mark.parametrize("below", ["", "below", "job", "job/journal"])
def test_without_a_usable_state_directory_nothing_is_claimed(tmp_path: Path, below: str) -> None:
    store, state_dir = tmp_path / "store", tmp_path / "state"
    assert claimed(store, tmp_path / "healthy").epoch == 1
    wrong = state_dir / below if below.startswith("job") else state_dir
    wrong.parent.mkdir(parents=True, exist_ok=True)
    wrong.touch()
    with pytest.raises(ConfigError, match=r"state_dir .*: Not a directory; give --state-dir"):
        claimed(store, state_dir / "below" if below == "below" else state_dir)
    assert epoch_of(store) == 1


def test_a_state_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with pytest.raises(ConfigError, match="state_dir /proc/nope: cannot write in /proc/nope/job"):
        claimed(store, Path("/proc/nope"))
    assert epoch_of(store) == 0


def test_the_check_leaves_nothing_behind(tmp_path: Path) -> None:
    attempt = claimed(tmp_path / "store", tmp_path / "state")
    assert list(attempt.journal.path.parent.iterdir()) == [attempt.journal.path]


def test_a_journal_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = journal_path(tmp_path, job_id="job", epoch=1)
    path.mkdir(parents=True)
    with pytest.raises(JournalUnusableError, match=f"cannot open the journal {path}: Is a dir"):
        Journal.open(path, job_id="job", epoch=1)


def test_a_store_that_knows_none_of_the_attempts_here_is_not_started_in(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    for _ in range(2):
        attempt = claimed(tmp_path / "store", state_dir)
    with pytest.raises(ConfigError, match=r"attempts 1 to 2 of job job, the store .* has none: is"):
        claimed(tmp_path / "not-mounted", state_dir)
    assert epoch_of(tmp_path / "not-mounted") == 0
    assert [path.name for path in sorted(attempt.journal.path.parent.iterdir())] == [
        "000001.journal",
        "000002.journal",
    ]
    assert claimed(tmp_path / "store", state_dir).epoch == 3
    assert claimed(tmp_path / "not-mounted", tmp_path / "afresh").epoch == 1


def test_a_store_that_is_behind_the_journals_here_is_not_started_in(tmp_path: Path) -> None:
    claimed(tmp_path / "older", tmp_path / "elsewhere")
    for _ in range(2):
        claimed(tmp_path / "store", tmp_path / "state")
    with pytest.raises(ConfigError, match="only attempts up to 1: is it the right one"):
        claimed(tmp_path / "older", tmp_path / "state")
    assert epoch_of(tmp_path / "older") == 1


def test_a_machine_that_is_behind_the_store_may_run_the_job(tmp_path: Path) -> None:
    store = tmp_path / "store"
    claimed(store, tmp_path / "here")
    claimed(store, tmp_path / "elsewhere")
    assert claimed(store, tmp_path / "here").epoch == 3


def test_of_another_job_the_journals_say_nothing(tmp_path: Path) -> None:
    claimed(tmp_path / "store", tmp_path / "state")
    assert claimed(tmp_path / "other-store", tmp_path / "state", job="other").epoch == 1


def test_a_store_is_made_only_where_it_is_meant_to_be(tmp_path: Path) -> None:
    store = tmp_path / "not" / "mounted" / "store"
    with pytest.raises(ConfigError, match=r"mounted does not exist.*give --create-store"):
        claimed(store, tmp_path / "state")
    assert not (tmp_path / "not").exists()
    assert claimed(store, tmp_path / "state", create=True).epoch == 1
    assert claimed(store, tmp_path / "state").epoch == 2


def test_another_store_of_the_same_job_is_not_taken_for_the_one_that_the_journals_know(
    tmp_path: Path,
) -> None:
    claimed(tmp_path / "store", tmp_path / "state")
    for _ in range(2):
        claimed(tmp_path / "other", tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"attempt 1 of job job, whose journal is on this mach"):
        claimed(tmp_path / "other", tmp_path / "state")
    assert epoch_of(tmp_path / "other") == 2
    assert claimed(tmp_path / "store", tmp_path / "state").epoch == 2


def test_the_attempt_says_which_store_it_was_claimed_in(tmp_path: Path) -> None:
    attempt = claimed(tmp_path / "store", tmp_path / "state")
    assert attempt.start.store_id == attempt.attempt_id
    later = claimed(tmp_path / "store", tmp_path / "state")
    assert later.start.store_id == attempt.attempt_id
    assert later.restore is not None
    assert later.restore.store_id == attempt.attempt_id


def leave(attempt: ClaimedAttempt, *, generation_id: str) -> None:
    """With a requeue record that names it."""
    record = RequeueRecord(
        job_id="job",
        epoch=attempt.epoch,
        cause=Cause.FINISHED,
        generation_id=generation_id,
        manifest_digest="sha256:0",
        step=1,
        world_size=1,
        capacity=Capacity(node_count=1),
        recorded_unix_ms=1,
    )
    attempt.publisher.record_requeue(record)


def test_what_a_start_refuses_the_next_one_refuses_again(tmp_path: Path) -> None:
    """Nothing is claimed behind a record that names what nobody committed."""
    leave(claimed(tmp_path / "store", tmp_path / "state"), generation_id="e000001-s000000000001-p")
    for number in range(3):
        with pytest.raises(RestoreRefusedError, match="which no commit names"):
            claimed(tmp_path / "store", tmp_path / f"state{number}")
    assert epoch_of(tmp_path / "store") == 1


def test_a_claim_that_slept_hides_no_loss(tmp_path: Path) -> None:
    """It looked before the commit was made that is lost now, and has taken its slot."""
    leave(claimed(tmp_path / "store", tmp_path / "state"), generation_id="e000001-s000000000001-p")
    store = open_store(str(tmp_path / "store"))
    CommitLog(store, job_id="job").claim(attempt_id="slept", now_unix_ms=2)
    with pytest.raises(RestoreRefusedError, match=r"of epoch 1 names .* which no commit names"):
        claimed(tmp_path / "store", tmp_path / "elsewhere")
    assert epoch_of(tmp_path / "store") == 2


def test_a_fenced_attempt_leaves_no_record(tmp_path: Path) -> None:
    old = claimed(tmp_path / "store", tmp_path / "state")
    claimed(tmp_path / "store", tmp_path / "elsewhere")
    with pytest.raises(FencedError, match="epoch 1 is fenced by epoch 2"):
        leave(old, generation_id="e000001-s000000000001-p")


def test_records_that_only_the_store_has_come_back_into_their_journal(tmp_path: Path) -> None:
    """The disk was full until the attempt had ended."""
    old = claimed(tmp_path / "store", tmp_path / "state")
    path = journal_path(tmp_path / "state", job_id="job", epoch=1)
    first = next(read_journal(path))
    more = [
        replace(first, id=f"more-{follows}", follows=follows, events=(HealthyStepReached(step=1),))
        for follows in (1, 2, 3)
    ]
    old.publisher.keep(more[:1])
    old.publisher.keep(more[1:])
    claimed(tmp_path / "store", tmp_path / "state")
    assert list(read_journal(path)) == [first, *more]
    claimed(tmp_path / "store", tmp_path / "state")
    assert list(read_journal(path)) == [first, *more]


def test_kept_records_that_make_no_sense_keep_no_start_waiting(tmp_path: Path) -> None:
    claimed(tmp_path / "store", tmp_path / "state")
    store = open_store(str(tmp_path / "store"))
    store.put_if_absent("log/000001/00000007-00000007-a.jsonl", b"garbage")
    assert claimed(tmp_path / "store", tmp_path / "state").epoch == 2
