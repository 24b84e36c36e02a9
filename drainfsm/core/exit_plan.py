"""How the exit margin is spent: ask to leave, kill, give up, exit, in this order.

The margin lies before the last instant that can be relied on: the deadline less the clock skew.
Nobody else divides it. For a margin of 5,000 ms::

    -5,000              -2,500       -1,250    -625      0
      |-------------------|------------|---------|-------|
    ranks are asked to   what is left  nobody is the     usable
    leave, at the latest is killed     waited    agent   deadline
                                       for       ends
"""

from __future__ import annotations

import msgspec


class ExitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The latest instants of an exit. Each is kept by its own process, whatever is stuck."""

    leave_by_unix_ms: int
    """The coordinator asks the ranks to leave: the save must be over."""

    kill_by_unix_ms: int
    """Every agent kills what has not left."""

    give_up_by_unix_ms: int
    """The coordinator waits for no report of a node any more, and records the end."""

    exit_by_unix_ms: int
    """Every agent ends, after the adapters' last acts."""


def exit_plan(
    *, usable_deadline_unix_ms: int, exit_margin_ms: int, asked_unix_ms: int | None = None
) -> ExitPlan:
    """``asked_unix_ms``: when the ranks were really asked to leave; earlier than they had to be,
    they have the whole margin to do so, if the deadline is that far."""
    kill_by = usable_deadline_unix_ms - exit_margin_ms // 2
    if asked_unix_ms is not None:
        kill_by = min(kill_by, asked_unix_ms + exit_margin_ms)
    return ExitPlan(
        leave_by_unix_ms=usable_deadline_unix_ms - exit_margin_ms,
        kill_by_unix_ms=kill_by,
        give_up_by_unix_ms=kill_by + kill_to_give_up_ms(exit_margin_ms),
        exit_by_unix_ms=usable_deadline_unix_ms - exit_margin_ms // 8,
    )


def kill_to_give_up_ms(exit_margin_ms: int) -> int:
    """For what was killed to be reaped and reported, and where nothing ever ran, for the adapters'
    last act."""
    return exit_margin_ms // 4


def kill_to_exit_ms(exit_margin_ms: int) -> int:
    """For the same, the log's last records and the adapters' last acts."""
    return exit_margin_ms // 2 - exit_margin_ms // 8


def closing_ms(exit_margin_ms: int) -> int:
    """For each of an agent's two last steps: to kill what a rank has left behind, and to close the
    log. They begin when it ends and fit before the usable deadline."""
    return exit_margin_ms // 16
