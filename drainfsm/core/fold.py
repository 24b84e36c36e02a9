"""``evolve``: state and event to the next state; ``Fold``: the same over a log, with its fence."""

from __future__ import annotations

from collections.abc import Iterable

from drainfsm.core.events import UnknownFact
from drainfsm.core.handlers import EVENT_HANDLERS, Handler
from drainfsm.core.lifecycle import TABLE, Guard, refusal
from drainfsm.core.records import Content, Record
from drainfsm.core.state import Attempt, Drain, Phase, State, first_state

Row = tuple[Phase, Guard | None, Handler]
Route = tuple[Phase, Guard | None, Handler, tuple[Row, ...]]
"""The first row, unpacked, because it is nearly always the one; and the rows after it."""


def evolve(state: State, event: Content) -> State:
    """The state after the event; one of an unknown kind changes nothing.

    Raises:
        EventRefusedError: the lifecycle table does not allow the event here. Nothing changed.
    """
    dest, guard, handler, others = ROUTES[type(event)][state.phase]
    if guard is None or guard(state, event):
        return handler(state.attempt, state.drain, event, dest)
    return _by_another(others, state, event)


def _by_another(rows: tuple[Row, ...], state: State, event: Content) -> State:
    for dest, guard, handler in rows:
        if guard is None or guard(state, event):
            return handler(state.attempt, state.drain, event, dest)
    raise refusal(state, event)


def _only_moves(attempt: Attempt, drain: Drain | None, event: Content, dest: Phase) -> State:
    return State(attempt, drain, dest)


def _not_in_the_table(state: State, event: Content) -> bool:
    return False


def _compile() -> dict[type, dict[Phase, Route]]:
    ignored: dict[Phase, Route] = {phase: (phase, None, _only_moves, ()) for phase in Phase}
    routes: dict[type, dict[Phase, Route]] = {UnknownFact: ignored}
    for kind, by_phase in TABLE.items():
        handler = EVENT_HANDLERS.get(kind, _only_moves)
        routes[kind] = {}
        for phase in Phase:
            found = by_phase.get(phase, ((phase, _not_in_the_table),))
            first, *others = [(dest, guard, handler) for dest, guard in found]
            routes[kind][phase] = (*first, tuple(others))
    return routes


ROUTES = _compile()
"""Class of the event, then state, to the rows of the table, each with its handler. A lookup costs
the same for every kind; a ``match`` chain does not."""


class Fold:
    """Reads one attempt's records in the order of the log, and skips what must not count.

    A record counts only right after as many counted records as its writer had read (``follows``),
    once per id, for ever, and only in its own epoch's log. The broker's sequence check is
    leader-local and can let a stale append through; every reader skips it here, alike. A skipped
    record moves nothing: its writer's journal does not have it, so what comes later in the journal
    must still find its place (``specs/models/Log.tla``).
    """

    def __init__(self, *, job_id: str, epoch: int) -> None:
        self.state = first_state(job_id=job_id, epoch=epoch)
        self.position = 0
        """Records that counted: what the next record must follow."""

        self.skipped = 0
        self._seen: set[str] = set()

    def read(self, record: Record) -> bool:
        """Fold one record; False where it was skipped.

        Raises:
            EventRefusedError: the table does not allow one of its events. The state is unchanged.
        """
        return self.read_all((record,)) == 1

    def read_all(self, records: Iterable[Record]) -> int:
        """Fold records as they come; returns how many counted. ``state`` is up to date once it
        returns.

        Raises:
            EventRefusedError: the state is that before the refused record.
        """
        state, position, seen = self.state, self.position, self._seen
        job_id, epoch, before = state.attempt.job_id, state.attempt.epoch, position
        try:
            for record in records:
                if (
                    record.follows != position
                    or record.epoch != epoch
                    or record.job_id != job_id
                    or record.id in seen
                ):
                    self.skipped += 1
                    continue
                seen.add(record.id)
                position += 1
                after = state
                for event in record.events:
                    # ``evolve``, inlined: the call alone would cost a tenth of the whole.
                    dest, guard, handler, others = ROUTES[type(event)][after.phase]
                    if guard is None or guard(after, event):
                        after = handler(after.attempt, after.drain, event, dest)
                    else:
                        after = _by_another(others, after, event)
                state = after
        finally:
            self.state, self.position = state, position
        return position - before
