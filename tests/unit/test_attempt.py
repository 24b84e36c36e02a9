"""What an attempt looks at before it claims the job: afterwards whoever ran it is fenced."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainfsm.errors import ConfigError, JournalUnusableError
from drainfsm.log.journal import Journal, journal_path
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt import ClaimedAttempt, claim_attempt
from drainfsm.store import CommitLog, open_store


def claimed(store: Path, state_dir: Path, *, job: str = "job") -> ClaimedAttempt:
    config = RunConfig(job=job, store=str(store), state_dir=state_dir, command=("true",))
    attempt = claim_attempt(config, Clock(), warn=lambda text: None)
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
