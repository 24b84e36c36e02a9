"""Are recorded histories behaviours of the model in ``specs/models/Drain.tla``? TLC judges."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from drainfsm.core import events as e
from drainfsm.errors import EventRefusedError
from drainfsm.views.history import read_file
from drainfsm_kit import tlc
from drainfsm_kit.model_steps import History, Step, steps_of

LEFT = re.compile(r'^<<"left", (\d+), (\d+)>>$', re.MULTILINE)

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
        left = _judge(list(traces.values()), node_count=node_count, models=models, folder=folder)
        for place, (index, trace) in enumerate(traces.items(), start=1):
            if left[place]:
                found[index] = trace[-left[place]].told
    return found


def _judge(
    traces: list[list[Step]], *, node_count: int, models: Path, folder: Path
) -> dict[int, int]:
    """By its place, how many steps of a trace the model does not take."""
    for name in ("Drain.tla", "Trace.tla"):
        shutil.copy(models / name, folder / name)
    (folder / "Histories.tla").write_text("\n".join(_module(traces, node_count)))
    (folder / "Trace.cfg").write_text(CONFIG)
    verdict = tlc.run(folder / "Trace.tla", folder / "Trace.cfg", scratch=folder / "states")
    if verdict.exit_code != tlc.HOLDS:
        raise AssertionError(f"TLC failed:\n{verdict.output}")
    left = {place: len(trace) for place, trace in enumerate(traces, start=1)}
    for place, count in LEFT.findall(verdict.output):
        left[int(place)] = min(left[int(place)], int(count))
    return left


def _module(traces: list[list[Step]], node_count: int) -> Iterator[str]:
    notices = {notice for trace in traces for step in trace for notice in step.notices}
    yield "------------------------------ MODULE Histories ------------------------------"
    yield f"RecordedNodes == {in_tla({f'n{node}' for node in range(node_count)})}"
    yield f"AllNotices == {in_tla(notices or {('none', 'soft', 1, 1)})}"
    yield "OneInstant == <<[level |-> <<0>>, due |-> {}]>>"
    for place, trace in enumerate(traces, start=1):  # short definitions: the parser is slow
        for number, step in enumerate(trace, start=1):
            yield f"S{place}x{number} == {in_tla(_recorded(step))}"
        names = ", ".join(f"S{place}x{number}" for number in range(1, len(trace) + 1))
        yield f"H{place} == <<{names}>>"
    yield f"Recorded == <<{', '.join(f'H{place}' for place in range(1, len(traces) + 1))}>>"
    yield "=" * 78


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


def in_tla(value: Any) -> str:
    """The value as TLA+ writes it."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case dict():
            fields = ", ".join(f"{key} |-> {in_tla(one)}" for key, one in value.items())
            return f"[{fields}]"
        case set() | frozenset():
            return "{" + ", ".join(sorted(in_tla(one) for one in value)) + "}"
        case _:
            return "<<" + ", ".join(in_tla(one) for one in value) + ">>"
