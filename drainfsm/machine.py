"""The embedding API: a drain as a state machine with callbacks.

A launcher feeds a ``DrainMachine`` notices and reports, and hangs callbacks on states and on what
is to be done. A dashboard or a launcher elsewhere follows the same drain from its records. The
states and arrows are those of ``core.lifecycle``, built into a ``transitions`` machine.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, TypeVar

from transitions import EventData, Machine, MachineError

from drainfsm.core.budget import Allowances, Sample
from drainfsm.core.codec import link_behind
from drainfsm.core.deadline import next_wake_unix_ms
from drainfsm.core.decider import decide
from drainfsm.core.effects import (
    AbortSave,
    AnyEffect,
    CordonNodes,
    Effect,
    HoldRanks,
    LeaveRanks,
    PublishManifest,
    RecordRequeue,
    ReleaseTo,
    ResumeTraining,
    StartSave,
    VerifyEntries,
    effects_of,
)
from drainfsm.core.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRestored,
    Event,
    HealthyStepReached,
    MemoryShortage,
    MissingRank,
    NodeExit,
    RequeueRecorded,
    RestoreRefused,
    SourceRecovered,
    SourceUnknown,
    UnknownFact,
    kind_of,
)
from drainfsm.core.fold import Fold, evolve
from drainfsm.core.inputs import (
    AnyInput,
    FormWorld,
    NodePosition,
    ReceiveNotice,
    ReportCordon,
    ReportDurable,
    ReportExited,
    ReportFenced,
    ReportPositions,
    ReportPublished,
    ReportQuiesced,
    ReportRanksLost,
    ReportSaveFailed,
    ReportStaged,
    ReportVerified,
    StartAttempt,
    Tick,
    WithdrawNotice,
)
from drainfsm.core.lifecycle import LIFECYCLE, Guard
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.core.records import Record
from drainfsm.core.requeue import RequeueRecord
from drainfsm.core.state import Attempt, Drain, Phase, State
from drainfsm.core.words import Accumulation, CordonOutcome, Verification
from drainfsm.errors import EventRefusedError

__all__ = [
    "AbortSave",
    "Accumulation",
    "Allowances",
    "AnyEffect",
    "AnyInput",
    "Attempt",
    "Cause",
    "CheckpointCommitted",
    "CheckpointFailed",
    "CheckpointRestored",
    "CordonNodes",
    "CordonOutcome",
    "Drain",
    "DrainMachine",
    "Effect",
    "FormWorld",
    "HealthyStepReached",
    "HoldRanks",
    "LeaveRanks",
    "MemoryShortage",
    "MissingRank",
    "NodeExit",
    "NodePosition",
    "Notice",
    "NoticeClass",
    "Phase",
    "PublishManifest",
    "ReceiveNotice",
    "Record",
    "RecordRequeue",
    "ReleaseTo",
    "ReportCordon",
    "ReportDurable",
    "ReportExited",
    "ReportFenced",
    "ReportPositions",
    "ReportPublished",
    "ReportQuiesced",
    "ReportRanksLost",
    "ReportSaveFailed",
    "ReportStaged",
    "ReportVerified",
    "RequeueRecord",
    "RequeueRecorded",
    "RestoreRefused",
    "ResumeTraining",
    "Sample",
    "SourceRecovered",
    "SourceUnknown",
    "StartAttempt",
    "StartSave",
    "State",
    "Tick",
    "Verification",
    "VerifyEntries",
    "WithdrawNotice",
]

E = TypeVar("E", bound=Effect)
StateCallback = Callable[["DrainMachine"], None]
ATTEMPT_ID = "embedded"


class DrainModel:
    """What ``transitions`` moves: the phase, and the folded state that the guards look at."""

    state: str
    """Name of the present phase, kept by ``transitions``."""

    machine: Machine

    def __init__(self, folded: State) -> None:
        self.folded = folded
        self.machine = Machine(
            model=self,
            states=[phase.value for phase in Phase],
            initial=folded.phase.value,
            transitions=transition_rows(),
            auto_transitions=False,
            send_event=True,
        )

    def step(self, event: Event) -> None:
        """Move along the arrow of the event.

        Raises:
            EventRefusedError: no arrow leads from here, or its guard does not hold.
        """
        kind = kind_of(event)
        try:
            moved = self.machine.events[kind].trigger(self, event=event)
        except MachineError as error:
            raise EventRefusedError(kind, phase=self.state, reason=str(error)) from error
        if not moved:
            raise EventRefusedError(kind, phase=self.state, reason="its guard does not hold")
        self.folded = evolve(self.folded, event)


def transition_rows() -> list[dict[str, Any]]:
    """The lifecycle table as ``transitions`` wants it; rows that stay are internal."""
    return [
        {
            "trigger": row.kind,
            "source": source.value,
            "dest": None if row.dest is None else row.dest.value,
            "conditions": [] if row.guard is None else [_condition(row.guard)],
        }
        for row in LIFECYCLE
        for source in sorted(row.sources)
    ]


def _condition(guard: Guard) -> Callable[[EventData], bool]:
    def holds(data: EventData) -> bool:
        model: Any = data.model
        return guard(model.folded, data.kwargs["event"])

    holds.__name__ = guard.__name__
    return holds


class DrainMachine:
    """One attempt's drains. Single-threaded: call it from one thread or one event loop.

    Callbacks may feed the machine again; what they feed is handled after them, in order.
    """

    def __init__(
        self,
        *,
        job_id: str,
        epoch: int = 1,
        world_size: int = 1,
        node_count: int = 1,
        save_bytes: int = 0,
        store: str = "",
        grace_ms: int = 30_000,
        allowances: Allowances | None = None,
        append: Callable[[Record], None] | None = None,
        now_unix_ms: Callable[[], int] | None = None,
    ) -> None:
        """``append`` gets every record before its effects run: put a journal's ``append`` here."""
        self._prepare(job_id=job_id, epoch=epoch)
        self._append = append
        self._now_unix_ms = now_unix_ms or (lambda: time.time_ns() // 1_000_000)
        self.report(
            StartAttempt(
                attempt_id=ATTEMPT_ID,
                node_count=node_count,
                allowances=allowances or Allowances(),
                grace_ms=grace_ms,
                store=store,
                claim_slot=0,
                restore=None,
            )
        )
        self.report(FormWorld(world_size=world_size, save_bytes=save_bytes))

    @classmethod
    def follow(cls, *, job_id: str, epoch: int) -> DrainMachine:
        """A machine that follows a drain elsewhere: feed it the records (``apply``)."""
        machine = cls.__new__(cls)
        machine._prepare(job_id=job_id, epoch=epoch)
        return machine

    def _prepare(self, *, job_id: str, epoch: int) -> None:
        self._fold = Fold(job_id=job_id, epoch=epoch)
        self._model = DrainModel(self._fold.state)
        self._append = None
        self._now_unix_ms = lambda: time.time_ns() // 1_000_000
        self._on_enter: defaultdict[str, list[StateCallback]] = defaultdict(list)
        self._on_effect: defaultdict[type[Effect], list[Callable[..., None]]] = defaultdict(list)
        self._waiting: deque[AnyInput] = deque()
        self._busy = False
        self.history: list[Record] = []

    # --- what a launcher reads -------------------------------------------------------------

    @property
    def state(self) -> str:
        """Name of the state: ``idle``, ``scheduled``, ``noticed`` … ``exited``."""
        return self._model.state

    @property
    def attempt(self) -> Attempt:
        """What the attempt runs with, what it committed, how it ended."""
        return self._fold.state.attempt

    @property
    def drain(self) -> Drain | None:
        """Its current drain, as it ended once that is over; None: no notice was accepted yet."""
        return self._fold.state.drain

    @property
    def folded(self) -> State:
        """Everything that is known, folded from the records."""
        return self._fold.state

    @property
    def next_wake_unix_ms(self) -> int | None:
        """When ``tick`` wants to be called; None: time alone changes nothing."""
        return next_wake_unix_ms(self.folded)

    @property
    def remaining_ms(self) -> int | None:
        """Time to the effective deadline; None: no drain was opened."""
        drain = self.drain
        return None if drain is None else drain.deadline_unix_ms - self._now_unix_ms()

    # --- what a launcher hangs on ----------------------------------------------------------

    def on_enter(self, state: str, callback: StateCallback) -> None:
        """Call ``callback(machine)`` whenever the state is entered.

        Raises:
            ValueError: there is no such state.
        """
        self._on_enter[Phase(state).value].append(callback)

    def on_effect(self, effect: type[E], callback: Callable[[DrainMachine, E], None]) -> None:
        """Call ``callback(machine, effect)`` when that is to be done (``StartSave`` …)."""
        self._on_effect[effect].append(callback)

    # --- what a launcher feeds -------------------------------------------------------------

    def notice(
        self,
        *,
        deadline_unix_ms: int | None,
        source: str = "launcher",
        native_id: str = "1",
        cause: Cause | str = Cause.UNKNOWN,
        hard: bool = True,
    ) -> None:
        """Hand in a notice. Without a deadline the configured grace counts from now.

        Raises:
            NoticeRejectedError: the deadline cannot be acted on.
        """
        notice = Notice(
            source=source,
            native_id=native_id,
            cause=Cause(cause),
            notice_class=NoticeClass.HARD if hard else NoticeClass.SOFT,
            deadline_unix_ms=deadline_unix_ms,
            received_unix_ms=self._now_unix_ms(),
        )
        self.report(ReceiveNotice(notice=notice))

    def withdraw(self, *, source: str = "launcher", native_id: str = "1", reason: str = "") -> None:
        """Take a SOFT notice back.

        Raises:
            InputRejectedError: the notice is HARD.
        """
        self.report(WithdrawNotice(source=source, native_id=native_id, reason=reason))

    def tick(self, *missing: MissingRank) -> None:
        """Time passed; ``missing`` names the ranks that have not done what they were asked."""
        self.report(Tick(missing=missing))

    def report(self, given: AnyInput) -> None:
        """Any input (``ReportCordon``, ``ReportPositions`` …). A repeat changes nothing.

        Raises:
            InputRejectedError: it makes no sense in the present state.
        """
        self._waiting.append(given)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._handle(self._waiting.popleft())
        finally:
            self._busy = False

    def _handle(self, given: AnyInput) -> None:
        now_unix_ms = self._now_unix_ms()
        if not (events := decide(self.folded, given, now_unix_ms=now_unix_ms)):
            return
        job_id, epoch, position = self.attempt.job_id, self.attempt.epoch, self._fold.position
        record = Record(
            id=f"{job_id}.{epoch}.{position}",
            job_id=job_id,
            epoch=epoch,
            follows=position,
            at_unix_ms=now_unix_ms,
            events=events,
            before=link_behind(self.history),
        )
        if self._append is not None:
            self._append(record)
        self.apply(record)
        for event in events:
            for effect in effects_of(event, self.folded):
                self._run(effect)

    def _run(self, effect: AnyEffect) -> None:
        for callback in self._on_effect[type(effect)]:
            callback(self, effect)

    def apply(self, record: Record) -> bool:
        """Follow one record of the log; False where every reader skips it. Runs no effects.

        Raises:
            EventRefusedError: the table does not allow one of its events. Nothing changed.
        """
        if not self._fold.read(record):
            return False
        self.history.append(record)
        for event in record.events:
            if not isinstance(event, UnknownFact):
                before = self._model.state
                self._model.step(event)
                if self._model.state != before:
                    for callback in self._on_enter[self._model.state]:
                        callback(self)
        return True
