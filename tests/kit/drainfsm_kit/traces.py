"""Traces that code has left, judged by TLC: is each of them a behaviour of a model?"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from drainfsm_kit import tlc

S = TypeVar("S")
LEFT = re.compile(r'^<<"left", (\d+), (\d+)>>$', re.MULTILINE)


def judge(
    traces: Sequence[Sequence[Any]],
    *,
    module: str,
    config: str,
    models: Path,
    folder: Path,
    definitions: Sequence[str] = (),
) -> list[int]:
    """How many steps of each trace the model does not take; 0: it is a behaviour.

    ``module``: extends a model by a specification that takes the steps in ``Recorded``, of the
    module ``Histories`` that is written here, and prints how many are left. ``folder``: empty.

    Raises:
        TlcMissingError: Java or the TLC jar is missing.
    """
    for path in models.glob("*.tla"):
        shutil.copy(path, folder / path.name)
    (folder / "Histories.tla").write_text("\n".join(_histories(traces, definitions)))
    (folder / f"{module}.cfg").write_text(config)
    verdict = tlc.run(
        folder / f"{module}.tla", folder / f"{module}.cfg", scratch=folder / "states", short=True
    )
    if verdict.exit_code != tlc.HOLDS:
        raise AssertionError(f"TLC failed:\n{verdict.output}")
    left = {place: len(trace) for place, trace in enumerate(traces, start=1)}
    for place, count in LEFT.findall(verdict.output):
        left[int(place)] = min(left[int(place)], int(count))
    return [left[place] for place in range(1, len(traces) + 1)]


def refused(
    traces: Sequence[Sequence[S]], models: Path, folder: Path, *, module: str, config: str
) -> list[S]:
    """The step of each trace that the model does not take, if there is one. See ``judge``."""
    left = judge(traces, module=module, config=config, models=models, folder=folder)
    return [trace[-count] for count, trace in zip(left, traces, strict=True) if count]


def _histories(traces: Sequence[Sequence[Any]], definitions: Sequence[str]) -> Iterator[str]:
    yield "------------------------------ MODULE Histories ------------------------------"
    yield from definitions
    for place, trace in enumerate(traces, start=1):  # short definitions: the parser is slow
        for number, step in enumerate(trace, start=1):
            yield f"S{place}x{number} == {in_tla(step)}"
        names = ", ".join(f"S{place}x{number}" for number in range(1, len(trace) + 1))
        yield f"H{place} == <<{names}>>"
    yield f"Recorded == <<{', '.join(f'H{place}' for place in range(1, len(traces) + 1))}>>"
    yield "=" * 78


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
