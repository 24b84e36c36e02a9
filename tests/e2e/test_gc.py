"""Clean-up in a loop beside a job that saves after every step, drains, is killed and resumes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drainfsm.cli.main import main
from drainfsm.core.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRestored,
    HealthyStepReached,
    RequeueRecorded,
    SaveAbandoned,
)
from drainfsm.runtime.clock import Clock
from drainfsm.store import CommitLog, open_store
from drainfsm.store.gc import remove, survey
from drainfsm.store.generations import read_manifest, verify_generation
from drainfsm.store.retention import Retention, plan
from drainfsm_kit.running import RunningJob, running_job

LAST = Retention(keep_last=1)


class Collector:
    """``gc --delete --keep-last 1`` again and again."""

    def __init__(self, job: RunningJob) -> None:
        self.removed: list[str] = []
        self.runs = 0
        self.failure: BaseException | None = None
        self._store = open_store(job.store_url)
        self._job = job.job
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop)

    def _loop(self) -> None:
        try:
            while not self._over.is_set():
                verdicts = plan(survey(self._store, job_id=self._job), LAST)
                for done in remove(self._store, verdicts, now_unix_ms=Clock().now_unix_ms):
                    assert not done.error, done
                    self.removed.append(done.verdict.generation_id)
                self.runs += 1
        except BaseException as failure:
            self.failure = failure

    @contextmanager
    def running(self) -> Iterator[Collector]:
        self._thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._thread.join()


def test_nothing_that_a_restart_needs_is_lost_while_a_job_saves_and_drains(tmp_path: Path) -> None:
    with running_job(tmp_path) as job:
        collector = Collector(job)
        with collector.running():
            job.start_toys("--every", "1")
            job.wait_for(CheckpointCommitted, count=8)
            job.notify(in_s=20)
            assert job.agents[-1].wait() == 75
            (left,) = job.find(RequeueRecorded)

            job.start_toys("--every", "1")
            job.wait_for(HealthyStepReached, epoch=2)
            (restored,) = job.find(CheckpointRestored, epoch=2)
            assert restored.generation_id == left.record.generation_id
            job.wait_for(CheckpointCommitted, epoch=2, count=5)
            job.agents[-1].process.kill()
            job.wait_until_gone()

            job.start_toys("--every", "3", "--steps", "1000")
            job.wait_for(CheckpointCommitted, epoch=3, count=3)
            job.notify(in_s=20)
            assert job.agents[-1].wait() == 75
        assert collector.failure is None, collector.failure
        for epoch in (1, 2, 3):
            failed = [one.reason for one in job.find(CheckpointFailed, epoch)]
            overtaken = [reason for reason in failed if "was committed before it" in reason]
            assert failed == overtaken, "a busy machine may let a save overtake another, no more"
            assert job.find(SaveAbandoned, epoch) == []
        assert len(collector.removed) > 10, "or the test proves nothing"
        assert collector.runs > 10
        _check_store(job, collector)


def _check_store(job: RunningJob, collector: Collector) -> None:
    store = open_store(job.store_url)
    commits = [commit for _, commit in CommitLog(store, job_id=job.job).commits()]
    committed = {commit.generation_id for commit in commits}
    holding = survey(store, job_id=job.job)
    assert committed - holding.pruned <= holding.stored_bytes.keys()
    assert set(collector.removed) & committed == holding.pruned
    for commit in commits:
        if commit.generation_id not in holding.pruned:
            manifest = read_manifest(
                store, generation_id=commit.generation_id, digest=commit.manifest_digest
            )
            verify_generation(store, manifest, checksums=True)
    assert commits[-1].generation_id not in holding.pruned


def test_the_command_beside_a_live_job_touches_nothing_in_a_dry_run(tmp_path: Path) -> None:
    with running_job(tmp_path) as job:
        job.start_toys("--every", "1")
        job.wait_for(CheckpointCommitted, count=6)
        assert main(["gc", "--store", job.store_url, "--job", job.job, "--keep-last", "1"]) == 0
        holding = survey(open_store(job.store_url), job_id=job.job)
        assert not holding.pruned
        job.notify(in_s=20)
        assert job.agents[-1].wait() == 75
