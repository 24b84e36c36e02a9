"""Given an attempt and these inputs, when this one comes, then those events.

scenario = Scenario().given(...)
scenario.when(scenario.notice(in_ms=60_000))
scenario.then(NoticeReceived)
scenario.then_refused(WithdrawNotice(...), match="HARD")
"""

from __future__ import annotations

from drainfsm.core import inputs as i
from drainfsm.core.budget import Allowances, Sample
from drainfsm.core.decider import decide
from drainfsm.core.events import Event, kind_of, snake_case
from drainfsm.core.fold import Fold
from drainfsm.core.notice import Cause, Notice, NoticeClass, stated_revision
from drainfsm.core.records import Record
from drainfsm.core.state import State
from drainfsm.core.words import CordonOutcome
from drainfsm.errors import DrainfsmError

NOON_UNIX_MS = 1_800_000_000_000
STORE = "file:///store"


class Scenario:
    """One attempt in memory: inputs go in, records come out, and the clock is yours."""

    def __init__(
        self,
        *,
        node_count: int = 2,
        ranks_per_node: int = 2,
        allowances: Allowances | None = None,
        samples: tuple[Sample, ...] = (),
        save_bytes: int = 10_000_000,
        grace_ms: int = 30_000,
        epoch: int = 1,
        job_id: str = "job",
        form_world: bool = True,
    ) -> None:
        self.node_count = node_count
        self.ranks_per_node = ranks_per_node
        self.now_unix_ms = NOON_UNIX_MS
        self._fold = Fold(job_id=job_id, epoch=epoch)
        self.history: list[Record] = []
        self._added: tuple[Event, ...] = ()
        """The events that the last input added."""

        self.when(
            i.StartAttempt(
                attempt_id="attempt",
                node_count=node_count,
                allowances=allowances or Allowances(),
                grace_ms=grace_ms,
                store=STORE,
                claim_slot=1,
                restore=None,
                samples=samples,
            )
        )
        if form_world:
            self.when(i.FormWorld(world_size=self.world_size, save_bytes=save_bytes))

    @property
    def world_size(self) -> int:
        return self.node_count * self.ranks_per_node

    @property
    def state(self) -> State:
        return self._fold.state

    def wait(self, elapsed_ms: int) -> Scenario:
        self.now_unix_ms += elapsed_ms
        return self

    def when(self, given: i.AnyInput) -> tuple[Event, ...]:
        """Hand the input in now; the events that it added."""
        self._added = ()
        events = decide(self.state, given, now_unix_ms=self.now_unix_ms)
        if events:
            position = self._fold.position
            record = Record(
                id=f"r{position}",
                job_id=self.state.attempt.job_id,
                epoch=self.state.attempt.epoch,
                follows=position,
                at_unix_ms=self.now_unix_ms,
                events=events,
            )
            assert self._fold.read(record)
            self.history.append(record)
        self._added = events
        return events

    def given(self, *inputs: i.AnyInput) -> Scenario:
        for given in inputs:
            self.when(given)
        return self

    def then(self, *kinds: type[Event]) -> Scenario:
        """The last input added events of these kinds, in this order, and no others.

        Raises:
            AssertionError: it added others; the message says which.
        """
        added = [kind_of(event) for event in self._added]
        wanted = [snake_case(kind.__name__) for kind in kinds]
        assert added == wanted, f"expected {wanted or 'no event'}, and got {added or 'none'}"
        return self

    def then_nothing(self) -> Scenario:
        """The last input added no event: it was a repeat, or came too early or too late."""
        return self.then()

    def then_refused(self, given: i.AnyInput, *, match: str = "") -> Scenario:
        """Hand the input in now: it is refused, with ``match`` in the reason, and nothing changes.

        Raises:
            AssertionError: it was taken, or refused for another reason.
        """
        before, refused = self.state, None
        try:
            self.when(given)
        except DrainfsmError as error:
            refused = str(error)
        added = [kind_of(event) for event in self._added]
        assert refused is not None, f"{type(given).__name__} was taken, and added {added or 'none'}"
        assert match in refused, f"refused, but because: {refused}"
        assert self.state == before, "it was refused, and changed the state"
        return self

    # --- inputs of a drain that goes well --------------------------------------------------

    def notice(
        self,
        *,
        in_ms: int | None = 60_000,
        native_id: str = "n1",
        source: str = "spot",
        hard: bool = True,
        clock_skew_ms: int = 0,
        revision: int = 1,
    ) -> i.ReceiveNotice:
        return i.ReceiveNotice(
            notice=Notice(
                source=source,
                native_id=native_id,
                cause=Cause.SPOT_INTERRUPTION,
                notice_class=NoticeClass.HARD if hard else NoticeClass.SOFT,
                deadline_unix_ms=None if in_ms is None else self.now_unix_ms + in_ms,
                received_unix_ms=self.now_unix_ms,
                clock_skew_ms=clock_skew_ms,
                revision=stated_revision(revision),
            )
        )

    def cordoned(self) -> i.ReportCordon:
        return i.ReportCordon(outcome=CordonOutcome.SUCCESS, duration_ms=20)

    def ranks(self, node: int) -> tuple[int, ...]:
        first = node * self.ranks_per_node
        return tuple(range(first, first + self.ranks_per_node))

    def positions(
        self, *, step: int = 100, step_ms: int = 50, busy_for_ms: int | None = None
    ) -> i.ReportPositions:
        return i.ReportPositions(
            positions=tuple(
                i.NodePosition(
                    node=node,
                    ranks=self.ranks(node),
                    min_step=step - 1,
                    max_step=step,
                    step_ms=step_ms,
                    busy_rank=0 if busy_for_ms is not None else None,
                    busy_phase="eval" if busy_for_ms is not None else "",
                    busy_for_ms=busy_for_ms,
                )
                for node in range(self.node_count)
            )
        )

    def quiesced(self, node: int, *, step: int = 101) -> i.ReportQuiesced:
        return i.ReportQuiesced(node=node, ranks=self.ranks(node), step=step)

    def all_quiesced(self, *, step: int = 101) -> list[i.AnyInput]:
        return [self.quiesced(node, step=step) for node in range(self.node_count)]

    @property
    def generation_id(self) -> str:
        """The drain's save; ``none`` before it starts."""
        save = self.state.save
        return "none" if save is None else save.generation_id

    def staged(self) -> i.ReportStaged:
        return i.ReportStaged(
            generation_id=self.generation_id, staged_bytes=900, rank_count=self.world_size
        )

    def durable(self) -> i.ReportDurable:
        return i.ReportDurable(
            generation_id=self.generation_id,
            durable_bytes=1_000,
            file_count=9,
            rank_count=self.world_size,
        )

    def verified(self, *, count: int = 9) -> i.ReportVerified:
        return i.ReportVerified(
            generation_id=self.generation_id,
            expected_count=9,
            verified_count=count,
            verified_bytes=1_000,
        )

    def published(self) -> i.ReportPublished:
        return i.ReportPublished(
            generation_id=self.generation_id, manifest_digest="sha256:00", slot=2
        )

    def saving(self, *, in_ms: int = 60_000) -> Scenario:
        """Notice, cordon, positions, every node quiesced: the save has started."""
        self.given(self.notice(in_ms=in_ms), self.cordoned(), self.positions())
        return self.given(*self.all_quiesced())
