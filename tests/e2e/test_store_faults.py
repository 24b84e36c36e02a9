"""What is done to the store of a job that runs, and what a job that slept finds there."""

from __future__ import annotations

import signal
from pathlib import Path

from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.core.events import (
    AttemptStarted,
    CheckpointCommitted,
    HealthyStepReached,
    SaveAbandoned,
    SaveSkipped,
)
from drainfsm.runtime.coordinator.attempt_end import FENCED_EXIT_CODE
from drainfsm.store import CommitLog, open_store
from drainfsm_kit.running import ROOMY, running_job


def test_a_store_that_vanishes_is_neither_made_anew_nor_committed_into(tmp_path: Path) -> None:
    with running_job(tmp_path) as job:
        agent = job.start(job.toy("--every", "5", "--durably"), allowances=ROOMY, grace_s=60)
        job.wait_for(CheckpointCommitted)
        elsewhere = tmp_path / "elsewhere"
        job.store.rename(elsewhere)  # an unmounted file system, to those who have no file open
        job.notify(in_s=60)
        assert agent.wait() == EX_TEMPFAIL
        assert not job.store.exists(), agent.output()
        assert [*job.find(SaveAbandoned), *job.find(SaveSkipped)]
        elsewhere.rename(job.store)
        log = CommitLog(open_store(job.store_url), job_id=job.job)
        committed = [commit.step for _, commit in log.commits()]
        again = job.start(job.toy("--steps", str(committed[-1] + 5), "--durably"))
        assert again.wait() == 0
        (started,) = job.find(AttemptStarted, epoch=2)
        assert started.restore is not None
        assert started.restore.step == committed[-1], "nothing that was committed is trained again"


def test_an_empty_directory_in_the_place_of_the_store_is_not_committed_into(tmp_path: Path) -> None:
    """The mount point, once the file system is gone."""
    with running_job(tmp_path) as job:
        agent = job.start(job.toy("--every", "5", "--durably"), allowances=ROOMY, grace_s=60)
        job.wait_for(CheckpointCommitted)
        job.store.rename(tmp_path / "elsewhere")
        job.store.mkdir()
        job.notify(in_s=60)
        assert agent.wait() == EX_TEMPFAIL
        for name in ("commits", "requeue", "store.json", "marks"):
            assert not (job.store / name).exists(), agent.output()
        assert "is not the store" in agent.output()
        refused = job.start(job.toy("--steps", "5"))
        assert refused.wait() == 2, "the journal knows another store"
        assert not (job.store / "commits").exists()


def test_an_attempt_that_slept_while_a_successor_took_over_is_not_started_again(
    tmp_path: Path,
) -> None:
    """It had skipped its save and was leaving when it was frozen: it looks once more at its end."""
    with running_job(tmp_path) as job:
        command = job.toy("--every", "5", "--hang", "0@20", "--durably")
        old = job.start(command, allowances=ROOMY, grace_s=60)
        job.wait_for(CheckpointCommitted)
        job.wait_anyway(lambda: 19 in job.steps(0) or None, what="the last step that ends")
        job.notify(in_s=60)
        job.wait_for(SaveSkipped)
        old.signal(signal.SIGSTOP)
        job.state_dir = tmp_path / "elsewhere"
        new = job.start(job.toy("--every", "5", "--durably", "--steps", "1000000"))
        job.wait_for(HealthyStepReached, epoch=2)
        job.wait_for(CheckpointCommitted, epoch=2)
        old.signal(signal.SIGCONT)
        assert old.wait() == FENCED_EXIT_CODE, old.output()
        committed = len(job.find(CheckpointCommitted, epoch=2))
        job.wait_for(CheckpointCommitted, epoch=2, count=committed + 1)
        new.signal(signal.SIGTERM)
        assert new.wait() == EX_TEMPFAIL
