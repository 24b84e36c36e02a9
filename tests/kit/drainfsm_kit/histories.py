"""Golden histories: what the events of a log did."""

from __future__ import annotations

from collections.abc import Iterable

from drainfsm.views.replay import AttemptReplay


def states(replays: Iterable[AttemptReplay]) -> str:
    """One line an event: attempt, kind, what it did, the state after it, the time that was left."""
    replays = list(replays)
    lines = [
        f"{line.epoch} {line.kind} {line.outcome} {line.phase.value} {line.remaining_ms}"
        for replay in replays
        for line in replay.lines
    ]
    finals = [f"final {one.final.epoch} {one.final.phase.value}" for one in replays]
    return "\n".join([*lines, *finals]) + "\n"
