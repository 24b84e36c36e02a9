"""Clean-up against attempts that claim, commit, lose answers, leave late, and never stop.

A plan is made at any instant and carried out at any later one. After it every restart still finds
what it asks for, and nothing that was removed is ever committed.
"""

from __future__ import annotations

import contextlib
import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from drainfsm.core.manifest import Commit, Entry, Manifest
from drainfsm.core.notice import Cause
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import generation_id
from drainfsm.errors import CommitLogError, FencedError, GenerationPrunedError
from drainfsm.store.commits import Claimed, CommitLog
from drainfsm.store.gc import remove, survey
from drainfsm.store.generations import (
    generation_prefix,
    is_pruned,
    read_manifest,
    verify_generation,
    write_manifest,
)
from drainfsm.store.requeues import restore_for, write_requeue
from drainfsm.store.retention import UNSETTLED_COMMITS, Retention, Verdict, plan
from drainfsm.testing.stores import MemoryStore

JOB = "job"
ANY = st.randoms(use_true_random=False)
NUMBERS = st.sampled_from([None, 1, 1, 1, 2])


@dataclasses.dataclass
class Attempt:
    """One that may be alive, dead, or stopped and continued: nobody can tell."""

    epoch: int
    log: CommitLog
    claimed: Claimed
    known: Commit | None = None
    """The newest commit that it knows of."""

    restored: bool = False
    unknown_count: int = 0
    """Publishes in a row whose answers it lost."""

    writing: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)
    left: bool = False


class Jobs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.attempts: list[Attempt] = []
        self.plans: list[tuple[Verdict, ...]] = []
        self.steps = 0
        self.removed: set[str] = set()
        self.pruned: set[str] = set()
        self.falls_back = False
        """Restores may find the recorded generation damaged, and take the one before."""

    def _one(self, random: object) -> Attempt:
        """Mostly the newest, else one of those that a newer one has taken over from."""
        newest = self.attempts[-1]
        chosen: Attempt = random.choice([newest, newest, *self.attempts[-3:]])  # type: ignore[attr-defined]
        return chosen

    @initialize(falls_back=st.booleans())
    def first(self, falls_back: bool) -> None:
        self.falls_back = falls_back
        self.claim(restores=True, damaged=False)

    @rule(restores=st.booleans(), damaged=st.booleans())
    def claim(self, restores: bool, damaged: bool) -> None:
        if not self.attempts[-1:] or self.attempts[-1].restored:
            self._claim()
        if restores:
            self.restore(damaged)

    def _claim(self) -> None:
        log = CommitLog(self.store, job_id=JOB, pause=lambda _: None)
        claimed = log.claim(attempt_id=f"a{len(self.attempts)}", now_unix_ms=1)
        self.attempts.append(Attempt(claimed.epoch, log, claimed))

    @rule(damaged=st.booleans())
    def restore(self, damaged: bool) -> None:
        """The newest attempt derives or consumes its record, and loads what it names."""
        attempt = self.attempts[-1]
        if attempt.restored:
            return
        record = restore_for(self.store, attempt.log, attempt.claimed, now_unix_ms=1, node_count=1)
        attempt.restored = True
        if record is None or record.generation_id is None:
            return
        found = attempt.log.find(record.generation_id)
        assert found is not None
        attempt.known = found[1]
        self._load(attempt.known)
        before = attempt.log.before(record.generation_id)
        commit = next((c for c in before if not is_pruned(self.store, c.generation_id)), None)
        if self.falls_back and damaged and commit is not None:
            attempt.known = commit
            self._load(commit)

    def _load(self, commit: Commit) -> None:
        manifest = read_manifest(
            self.store, generation_id=commit.generation_id, digest=commit.manifest_digest
        )
        verify_generation(self.store, manifest, checksums=True)

    @rule(random=ANY, begins=st.booleans())
    def write(self, random: object, begins: bool) -> None:
        """A rank writes; with its manifest the generation is ready to be committed."""
        self._write(self._one(random), begins=begins)

    def _write(self, attempt: Attempt, *, begins: bool) -> None:
        if not attempt.restored or len(attempt.writing) > 2:
            return
        self.steps += 1
        generation = generation_id(epoch=attempt.epoch, step=self.steps, saver="p")
        name = generation_prefix(generation) + "rank0"
        self.store.put_if_absent(name, b"x")
        if begins:
            return  # killed before the manifest
        entry = Entry(
            name="rank0",
            size_bytes=1,
            checksum="sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
            rank=0,
        )
        manifest = Manifest(
            job_id=JOB,
            epoch=attempt.epoch,
            generation_id=generation,
            step=self.steps,
            world_size=1,
            entries=(entry,),
            created_unix_ms=1,
        )
        attempt.writing.append((generation, self.steps, write_manifest(self.store, manifest)))

    @rule(answers=st.lists(st.booleans(), min_size=1, max_size=5))
    def train(self, answers: list[bool]) -> None:
        """The newest attempt saves again and again, and loses some answers."""
        for answered in answers:
            self._write(self.attempts[-1], begins=False)
            self._publish(self.attempts[-1], answered=answered, late=False)

    @rule(random=ANY, answered=st.booleans(), late=st.booleans())
    def publish(self, random: object, answered: bool, late: bool) -> None:
        self._publish(self._one(random), answered=answered, late=late)

    def _publish(self, attempt: Attempt, *, answered: bool, late: bool) -> None:
        if not attempt.writing:
            return
        generation, step, digest = attempt.writing.pop(0 if late else -1)
        commit = Commit(
            job_id=JOB,
            epoch=attempt.epoch,
            attempt_id=f"a{self.attempts.index(attempt)}",
            generation_id=generation,
            manifest_digest=digest,
            step=step,
            world_size=1,
            total_bytes=1,
            file_count=1,
            committed_unix_ms=1,
        )
        try:
            attempt.log.publish(commit)
        except FencedError:
            return
        assert generation not in self.removed, "a removed generation was committed"
        if answered or attempt.unknown_count == UNSETTLED_COMMITS - 1:
            attempt.known, attempt.unknown_count = commit, 0
        else:
            attempt.unknown_count += 1

    @rule(damaged=st.booleans())
    def requeue(self, damaged: bool) -> None:
        self._leave(self.attempts[-1])
        self.claim(restores=True, damaged=damaged)

    @rule(random=ANY)
    def leave(self, random: object) -> None:
        """With a record, perhaps long after a newer attempt has claimed."""
        self._leave(self._one(random))

    def _leave(self, attempt: Attempt) -> None:
        if attempt.left or not attempt.restored:
            return
        attempt.left = True
        known = attempt.known
        record = RequeueRecord(
            job_id=JOB,
            epoch=attempt.epoch,
            cause=Cause("test"),
            generation_id=known.generation_id if known else None,
            manifest_digest=known.manifest_digest if known else None,
            step=known.step if known else None,
            world_size=1,
            capacity=Capacity(node_count=1),
            recorded_unix_ms=1,
        )
        with contextlib.suppress(CommitLogError):
            write_requeue(self.store, record)

    @rule()
    def collect(self) -> None:
        self.think(2 if self.falls_back else 1, None)
        self._act(len(self.plans) - 1, stops_after=10**6)

    @rule(keep_last=NUMBERS, keep_every=NUMBERS)
    def think(self, keep_last: int | None, keep_every: int | None) -> None:
        if self.falls_back:
            keep_last = max(2, keep_last or 2)  # as documented
        retention = Retention(keep_last=keep_last, keep_every=keep_every)
        holding = survey(self.store, job_id=JOB)
        verdicts = plan(holding, retention)
        committed = {commit.generation_id for commit in holding.commits}
        for verdict in verdicts:
            if verdict.removes:
                assert verdict.commit != holding.commits[-1] if holding.commits else True
                if not retention.prunes:
                    assert verdict.generation_id not in committed - holding.pruned
                if verdict.generation_id not in committed:
                    assert int(verdict.generation_id[1:7]) < self.attempts[-1].epoch
        self.plans.append(verdicts)

    @precondition(lambda self: self.plans and not self.falls_back)
    @rule(random=ANY, stops_after=st.integers(0, 5))
    def act(self, random: object, stops_after: int) -> None:
        """Any plan, however old; the clean-up may be killed between two generations."""
        self._act(random.randrange(len(self.plans)), stops_after=stops_after)  # type: ignore[attr-defined]

    def _act(self, index: int, *, stops_after: int) -> None:
        verdicts = self.plans.pop(index)
        for removed, _ in zip(
            remove(self.store, verdicts, now_unix_ms=lambda: 1), range(stops_after), strict=False
        ):
            assert not removed.error
            target = self.pruned if removed.verdict.commit else self.removed
            target.add(removed.verdict.generation_id)

    @invariant()
    def the_newest_commit_is_whole(self) -> None:
        commit = CommitLog(self.store, job_id=JOB).head().commit
        if commit is not None:
            read_manifest(
                self.store, generation_id=commit.generation_id, digest=commit.manifest_digest
            )

    @invariant()
    def what_was_pruned_is_refused_with_its_own_error(self) -> None:
        for generation in sorted(self.pruned)[-2:]:
            with contextlib.suppress(GenerationPrunedError):
                read_manifest(self.store, generation_id=generation, digest="sha256:00")
                raise AssertionError(f"{generation} was pruned and is read")


def test_jobs() -> None:
    """By a function: see ``test_drains``."""
    run = settings(max_examples=200, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(lambda: Jobs(), settings=run)  # type: ignore[arg-type]
