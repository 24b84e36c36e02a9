"""I7 and the one total order, whatever the store answers and however attempts interleave."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from drainfsm.core.manifest import Claim, Commit
from drainfsm.errors import CommitLogError, FencedError, StoreUnreachableError
from drainfsm.store.commits import CommitLog
from drainfsm.store.slots import PREFIX, slot_numbers
from drainfsm.testing.stores import AmbiguousStore, MemoryStore, PutAnswer
from drainfsm_kit.interleave import Actor, Interleaving

GENERATIONS_PER_ATTEMPT = 2
STEPS_MAX = 400
ATTEMPTS = ("a", "b", "c")


class World:
    """Several attempts at one store whose answers the test draws."""

    def __init__(self, data: st.DataObject) -> None:
        self.memory = MemoryStore()
        self.answer = PutAnswer.TRUE
        self.stores: list[AmbiguousStore] = []
        self.landed = 0
        """Late puts that took effect."""

        self.claimed: dict[str, tuple[int, int]] = {}
        self.published: dict[str, int] = {}
        self.fenced: list[tuple[int, int, int]] = []
        """Own epoch, newest epoch, and the number of slots when the error was raised."""

        self._data = data

    def attempt(self, attempt_id: str) -> Callable[[Actor], None]:
        def work(actor: Actor) -> None:
            store = AmbiguousStore(self.memory, answer=lambda _: self.answer, before=actor.gate)
            self.stores.append(store)
            log = CommitLog(store, job_id="job", pause=lambda _: None)
            try:
                claimed = log.claim(attempt_id=attempt_id, now_unix_ms=1)
            except StoreUnreachableError:
                return
            self.claimed[attempt_id] = (claimed.slot, claimed.epoch)
            for number in range(GENERATIONS_PER_ATTEMPT):
                if not self._publish(log, attempt_id, claimed.epoch, number):
                    return

        return work

    def _publish(self, log: CommitLog, attempt_id: str, epoch: int, number: int) -> bool:
        """Publishes twice over, as a coordinator that got no answer does; False: fenced."""
        for at_unix_ms in (1, 2):
            commit = commit_of(attempt_id, epoch, number, at_unix_ms)
            try:
                self.published[commit.generation_id] = log.publish(commit)
            except StoreUnreachableError:
                continue
            except FencedError as error:
                self.fenced.append((epoch, error.newest_epoch, slot_count(self.memory)))
                return False
        return True

    def run(self) -> None:
        with Interleaving({name: self.attempt(name) for name in ATTEMPTS}) as interleaving:
            for _ in range(STEPS_MAX):
                if not interleaving.runnable:
                    return
                self._land_some()
                self.answer = self._data.draw(ANSWERS)
                self._data.draw(st.sampled_from(interleaving.runnable)).step()
            self.answer = PutAnswer.TRUE

    def _land_some(self) -> None:
        for store in self.stores:
            lands: bool = self._data.draw(st.booleans())
            if store.late and lands:
                index = self._data.draw(st.integers(0, len(store.late) - 1))
                self.landed += store.land(index)


ANSWERS = st.sampled_from(
    [PutAnswer.TRUE] * 3 + [PutAnswer.LOST, PutAnswer.REFUSED, PutAnswer.LATE]
)


def slot_count(memory: MemoryStore) -> int:
    return len(slot_numbers(memory.names(PREFIX)))


def commit_of(attempt_id: str, epoch: int, number: int, at_unix_ms: int) -> Commit:
    return Commit(
        job_id="job",
        epoch=epoch,
        attempt_id=attempt_id,
        generation_id=f"e{epoch}-{number}",
        manifest_digest="sha256:0",
        step=number,
        world_size=1,
        total_bytes=1,
        file_count=1,
        committed_unix_ms=at_unix_ms,
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_log_is_one_total_order_in_which_nothing_follows_a_newer_claim(
    data: st.DataObject,
) -> None:
    world = World(data)
    world.run()
    while any(store.late for store in world.stores):
        next(store for store in world.stores if store.late).land(0)
    log = CommitLog(world.memory, job_id="job")
    slots = [log._reader.read(n).slot for n in range(1, log.head().slot + 1)]
    assert len(slots) == slot_count(world.memory), "a slot is missing"
    epoch, attempt_id = 0, ""
    generations = []
    for slot in slots:
        if isinstance(slot, Claim):
            assert slot.epoch == epoch + 1
            epoch, attempt_id = slot.epoch, slot.attempt_id
        else:
            assert (slot.epoch, slot.attempt_id) == (epoch, attempt_id), "published when fenced"
            generations.append(slot.generation_id)
    assert len(set(generations)) == len(generations), "a generation is committed twice"
    for name, (number, claimed_epoch) in world.claimed.items():
        claim = slots[number - 1]
        assert isinstance(claim, Claim)
        assert (claim.attempt_id, claim.epoch) == (name, claimed_epoch)
    for generation_id, number in world.published.items():
        commit = slots[number - 1]
        assert isinstance(commit, Commit)
        assert commit.generation_id == generation_id
    for own_epoch, newest_epoch, seen_count in world.fenced:
        assert newest_epoch > own_epoch
        assert any(slot.epoch == newest_epoch for slot in slots[:seen_count])


def test_the_adversary_does_every_kind_of_harm_and_attempts_do_get_fenced() -> None:
    """The property above is worth something only if these occur."""
    seen: set[str] = set()

    @settings(max_examples=30, deadline=None, database=None, derandomize=True)
    @given(data=st.data())
    def explore(data: st.DataObject) -> None:
        world = World(data)
        world.run()
        seen.update("fenced" for _ in world.fenced)
        seen.update("late" for _ in range(world.landed))
        if len(world.claimed) > 1 and len(world.published) > 1:
            seen.add("several attempts published")
        if len(world.published) == len(ATTEMPTS) * GENERATIONS_PER_ATTEMPT:
            seen.add("all published")

    explore()
    assert {"fenced", "late", "several attempts published"} <= seen, seen


def test_an_epoch_that_nobody_claimed_publishes_nothing() -> None:
    log = CommitLog(MemoryStore(), job_id="job")
    log.claim(attempt_id="a", now_unix_ms=1)
    for commit in (commit_of("a", 2, 0, 1), commit_of("b", 1, 0, 1)):
        try:
            log.publish(commit)
        except CommitLogError as error:
            assert "was not claimed by attempt" in str(error)  # noqa: PT017 - both must raise
        else:
            raise AssertionError("published without a claim")
