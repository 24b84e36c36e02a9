"""Stores that earlier versions wrote are read, and gone on with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from drainfsm.errors import CommitLogError, OtherJobsStoreError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt import ClaimedAttempt, claim_attempt
from drainfsm.store import CommitLog, open_store
from drainfsm.store.gc import remove, survey
from drainfsm.store.generations import read_manifest, verify_generation
from drainfsm.store.retention import Retention, plan

STORES = Path(__file__).parent / "stores"
RELEASED = sorted(path.name for path in STORES.glob("[0-9]*"))
JOB = "golden"
SLOTS, EPOCHS, NEWEST_STEP = 11, 3, 59
"""Two attempts drained, and the third was killed."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Written before slots were linked, and before stores had an identity."""
    return shutil.copytree(STORES / "unchained", tmp_path / "store")


def claimed(store: Path, state_dir: Path) -> ClaimedAttempt:
    config = RunConfig(job=JOB, store=str(store), state_dir=state_dir, command=("true",))
    attempt = claim_attempt(config, Clock(), warn=lambda text: None)
    attempt.journal.close()
    return attempt


def log_of(store: Path) -> CommitLog:
    return CommitLog(open_store(str(store)), job_id=JOB)


def slot(store: Path, number: int) -> Path:
    return store / "commits" / f"{number:08d}.json"


def test_it_is_read_as_it_was(store: Path) -> None:
    head = log_of(store).head()
    assert (head.slot, head.epoch) == (SLOTS, EPOCHS)
    assert head.commit is not None
    assert head.commit.step == NEWEST_STEP
    for _, commit in log_of(store).commits():
        manifest = read_manifest(
            open_store(str(store)),
            generation_id=commit.generation_id,
            digest=commit.manifest_digest,
        )
        verify_generation(open_store(str(store)), manifest, checksums=True)


def test_the_next_attempts_go_on_with_it_and_link_their_slots(store: Path, tmp_path: Path) -> None:
    first = claimed(store, tmp_path / "state")
    assert first.epoch == EPOCHS + 1
    assert first.target is not None
    assert first.target.step == NEWEST_STEP
    second = claimed(store, tmp_path / "state")
    assert second.target == first.target
    linked = [json.loads(slot(store, number).read_bytes())["link"] for number in (12, 13)]
    assert [link["slot"] for link in linked] == [12, 13]
    assert {link["newest_commit"] for link in linked} == {SLOTS}
    assert "link" not in json.loads(slot(store, SLOTS).read_bytes())
    assert [commit.step for _, commit in log_of(store).commits()] == [9, 19, 21, 29, 39, 45, 49, 59]


@pytest.mark.parametrize("version", RELEASED)
def test_a_store_of_a_release_is_read_gone_on_with_and_cleaned_up(
    version: str, tmp_path: Path
) -> None:
    store = shutil.copytree(STORES / version, tmp_path / "store")
    opened, head = open_store(str(store)), log_of(store).head()
    commits = [commit for _, commit in log_of(store).commits()]
    assert len(commits) > 5
    assert head.commit == commits[-1]
    for commit in commits:
        manifest = read_manifest(
            opened, generation_id=commit.generation_id, digest=commit.manifest_digest
        )
        verify_generation(opened, manifest, checksums=True)
    following = claimed(store, tmp_path / "state")
    assert following.epoch == head.epoch + 1
    assert following.target is not None
    assert following.target.generation_id == commits[-1].generation_id
    verdicts = plan(survey(opened, job_id=JOB), Retention(keep_last=1))
    gone = [one.verdict.generation_id for one in remove(opened, verdicts, now_unix_ms=lambda: 1)]
    assert commits[-1].generation_id not in gone
    assert set(gone) <= {commit.generation_id for commit in commits}
    slot(store, head.slot).write_bytes(slot(store, head.slot).read_bytes().replace(b"0", b"1", 1))
    with pytest.raises(CommitLogError):
        claimed(store, tmp_path / "other")


def test_it_is_cleaned_up_as_ever(store: Path, tmp_path: Path) -> None:
    claimed(store, tmp_path / "state")
    opened = open_store(str(store))
    verdicts = plan(survey(opened, job_id=JOB), Retention(keep_last=1))
    gone = [one.verdict.generation_id for one in remove(opened, verdicts, now_unix_ms=lambda: 1)]
    assert gone == [
        "e000001-s000000000009-p",
        "e000001-s000000000019-p",
        "e000001-s000000000021-d1",
        "e000002-s000000000029-p",
        "e000002-s000000000039-p",
    ]


def test_once_it_was_gone_on_with_what_is_lost_or_changed_is_seen(
    store: Path, tmp_path: Path
) -> None:
    claimed(store, tmp_path / "state")
    whole = slot(store, SLOTS).read_bytes()
    slot(store, SLOTS).write_bytes(whole.replace(b'"step": 59', b'"step": 58'))
    for number in range(2):
        with pytest.raises(CommitLogError, match=r"00000012\.json was not written after"):
            claimed(store, tmp_path / f"other{number}")
    slot(store, SLOTS).write_bytes(whole)
    slot(store, SLOTS + 1).unlink()
    with pytest.raises(CommitLogError, match=r"00000012\.json is missing, though it was written"):
        claimed(store, tmp_path / "other")


def test_lost_slots_of_it_that_a_requeue_record_knows_of_stay_refused(
    store: Path, tmp_path: Path
) -> None:
    for number in range(7, SLOTS + 1):  # from the end of the second attempt on
        slot(store, number).unlink()
    before = sorted(path.name for path in (store / "commits").iterdir())
    for number in range(2):
        with pytest.raises(Exception, match=r"e000002-s000000000045-d1, which no commit names"):
            claimed(store, tmp_path / f"state{number}")
    for number in range(4, 7):
        slot(store, number).unlink()
    for number in range(2):
        with pytest.raises(CommitLogError, match=r"000002\.json is of an attempt that no slot"):
            claimed(store, tmp_path / f"state{number}")
    assert len(before) == 6
    assert not (store / "store.json").exists()


def test_an_epoch_that_lost_a_bit_is_seen(store: Path, tmp_path: Path) -> None:
    data = slot(store, SLOTS).read_bytes()
    slot(store, SLOTS).write_bytes(data.replace(b'"epoch": 3', b'"epoch": 2'))
    for number in range(2):
        with pytest.raises(CommitLogError, match=r"00000011\.json has epoch 2, not 3"):
            claimed(store, tmp_path / f"state{number}")


def test_it_is_not_given_to_another_job(store: Path) -> None:
    with pytest.raises(OtherJobsStoreError, match="belongs to job 'golden'"):
        CommitLog(open_store(str(store)), job_id="other").head()
