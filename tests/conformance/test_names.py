"""The model speaks of the same events as the code, and allows them in the same states."""

from __future__ import annotations

import re
from pathlib import Path

from drainfsm.core.events import EVENT_TYPES
from drainfsm.core.lifecycle import LIFECYCLE
from drainfsm_kit.model_steps import OUT_OF_SCOPE
from drainfsm_kit.tlc import parse

DEFINITION = re.compile(r'^(\w+) == (\{(?:\s*"\w+",?)+\}|\w+(?: \\cup \w+)+)$', re.MULTILINE)
ROWS = re.compile(r"^(Table|Destination) == \[(.*?)\]$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"(\w+) \|->\s+(\{[^}]*\}|\w+|\"\w+\")")


def _sets(text: str) -> dict[str, frozenset[str]]:
    """The sets of phases that the model names."""
    sets: dict[str, frozenset[str]] = {}
    for name, value in DEFINITION.findall(text):
        if value.startswith("{"):
            sets[name] = parse(value)
        elif all(part in sets for part in value.split(" \\cup ")):
            sets[name] = frozenset().union(*(sets[part] for part in value.split(" \\cup ")))
    return sets


def _rows(text: str, table: str) -> dict[str, str]:
    (body,) = [body for name, body in ROWS.findall(text) if name == table]
    return dict(ROW.findall(body))


def test_the_model_has_every_event_of_the_code_but_those_out_of_its_scope(models: Path) -> None:
    text = (models / "Drain.tla").read_text()
    in_scope = {kind.__name__ for kind in EVENT_TYPES} - {kind.__name__ for kind in OUT_OF_SCOPE}
    assert _rows(text, "Table").keys() == in_scope


def test_the_model_allows_each_event_in_the_states_of_the_lifecycle_table(models: Path) -> None:
    text = (models / "Drain.tla").read_text()
    sets = _sets(text)
    ours: dict[str, frozenset[str]] = {}
    for step in LIFECYCLE:
        name = step.event.__name__
        ours[name] = ours.get(name, frozenset()) | {phase.value for phase in step.sources}
    for name, value in _rows(text, "Table").items():
        there = parse(value) if value.startswith("{") else sets[value]
        assert there == ours[name], name


def test_the_model_moves_to_the_state_that_the_lifecycle_table_names(models: Path) -> None:
    text = (models / "Drain.tla").read_text()
    moves = {
        step.event.__name__: step.dest.value
        for step in LIFECYCLE
        if step.dest is not None and step.kind != "notice_received"
    }
    assert {name: parse(value) for name, value in _rows(text, "Destination").items()} == moves


def test_the_other_models_name_their_steps_after_events_too(models: Path) -> None:
    known = {kind.__name__ for kind in EVENT_TYPES}
    for name, events in {
        "Agreement": {"StopStepAgreed", "RanksQuiesced", "QuiesceTimedOut", "DrainCancelled"},
        "Commits": {
            "SaveStarted",
            "Durable",
            "EntriesVerified",
            "ManifestPublished",
            "SaveAbandoned",
            "RequeueRecorded",
            "CheckpointRestored",
        },
    }.items():
        defined = set(re.findall(r"^(\w+)(?:\([\w, ]*\))? ==", _text(models, name), re.MULTILINE))
        assert events <= known
        assert events <= defined, f"{name}: {events - defined}"


def _text(models: Path, name: str) -> str:
    return (models / f"{name}.tla").read_text()
