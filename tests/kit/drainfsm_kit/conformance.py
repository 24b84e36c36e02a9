"""Are recorded histories behaviours of the model in ``specs/models/Drain.tla``? TLC judges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from drainfsm.core import events as e
from drainfsm.errors import EventRefusedError
from drainfsm.views.history import read_file
from drainfsm_kit.model_steps import History, Step, steps_of
from drainfsm_kit.traces import in_tla, judge

CONFIG = """SPECIFICATION TraceSpec
CONSTANTS
  Nodes <- RecordedNodes
  Messages <- AllNotices
  Drains = 1000
  Instants <- OneInstant
  Now <- TraceNow
  Crashes = FALSE
  KeepKinds = FALSE
  Fault = "none"
INVARIANT Told
"""


def node_count_of(history: History) -> int:
    """Of the agreement on a stop step; a history without one goes with any."""
    counts = [
        len(event.nodes)
        for record in history
        for event in record.events
        if isinstance(event, e.StopStepAgreed)
    ]
    return max(counts, default=1)


def histories_in(path: Path) -> Iterator[History]:
    """Of every attempt in an exported file or a journal, or in all those under a folder.

    What does not begin with the attempt's start is no attempt's history, and is left out.
    """
    files = [path] if path.is_file() else sorted({*path.rglob("*.jsonl"), *path.rglob("*.journal")})
    for file in files:
        for log in read_file(file).logs:
            if log.records and isinstance(log.records[0].events[0], e.AttemptStarted):
                yield log.records


# --- TLC ----------------------------------------------------------------------------------------


def refusals(histories: Sequence[History], *, models: Path, scratch: Path) -> dict[int, str]:
    """By the index of a history: its first record that the model does not have, and why.

    ``models`` is the folder of ``Drain.tla``, ``scratch`` an empty one. Empty: all are behaviours.

    Raises:
        TlcMissingError: Java or the TLC jar is missing.
    """
    found: dict[int, str] = {}
    groups: dict[int, dict[int, list[Step]]] = {}
    for index, history in enumerate(histories):
        try:
            groups.setdefault(node_count_of(history), {})[index] = steps_of(history)
        except EventRefusedError as error:
            found[index] = str(error)
    for node_count, traces in groups.items():
        folder = scratch / f"nodes{node_count}"
        folder.mkdir()
        left = judge(
            [[_recorded(step) for step in trace] for trace in traces.values()],
            module="Trace",
            config=CONFIG,
            models=models,
            folder=folder,
            definitions=_definitions(list(traces.values()), node_count),
        )
        for count, (index, trace) in zip(left, traces.items(), strict=True):
            if count:
                found[index] = trace[-count].told
    return found


def _definitions(traces: list[list[Step]], node_count: int) -> list[str]:
    notices = {notice for trace in traces for step in trace for notice in step.notices}
    return [
        f"RecordedNodes == {in_tla({f'n{node}' for node in range(node_count)})}",
        f"AllNotices == {in_tla(notices or {('none', 'soft', 1, 1)})}",
        "OneInstant == <<[level |-> <<0>>, due |-> {}]>>",
    ]


def _recorded(step: Step) -> dict[str, Any]:
    due = range(1, len(step.levels) + 1) if step.due else ()
    return {
        "now": {"level": step.levels, "due": set(due)},
        "expired": step.expired,
        "kinds": step.kinds,
        "notices": set(step.notices),
        "withdrawn": set(step.withdrawn),
        "after": step.after,
    }
