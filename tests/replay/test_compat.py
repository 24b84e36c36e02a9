"""What is stored may only change so that readers of the last release and of today go on together.

``released_schemas.json`` has the schemas of the last release. It is written at a release alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drainfsm_kit.compat import Schema, breaks, schemas

RELEASED = Path(__file__).parent / "released_schemas.json"


@pytest.fixture(scope="module")
def released() -> dict[str, Schema]:
    found: dict[str, Schema] = json.loads(RELEASED.read_text(encoding="utf-8"))
    return found


def test_nothing_that_is_stored_has_changed_so_that_a_reader_breaks(
    released: dict[str, Schema],
) -> None:
    assert breaks(released, schemas()) == []


def test_it_compares_everything_that_is_stored(released: dict[str, Schema]) -> None:
    assert {"record", "commit", "claim", "manifest", "requeue_record"} <= set(released)
    assert sum(name.startswith("event ") for name in released) > 30
    assert set(released) <= set(schemas())


COMMIT, RECORD = "commit", "record"
Change = Callable[[dict[str, Any]], object]
NUMBER = {"type": "integer"}


def words(found: dict[str, Any], name: str) -> Any:
    return found[RECORD]["$defs"][name]["x-extensible-enum"]


def fields(found: dict[str, Any], name: str) -> Any:
    return found[RECORD]["$defs"][name]["properties"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s.pop(COMMIT), "commit is gone"),
        (lambda s: s[COMMIT]["properties"].pop("step"), "commit.step is gone"),
        (lambda s: s[COMMIT]["properties"].update(step={"type": "string"}), "integer is not taken"),
        (lambda s: s[COMMIT]["required"].append("log"), "commit.log is required"),
        (lambda s: s[COMMIT]["required"].remove("step"), "commit.step may be missing now"),
        (lambda s: s[COMMIT]["properties"]["format_version"].update(default=2), "another default"),
        (lambda s: s[RECORD]["properties"]["events"]["items"]["anyOf"].pop(), "not taken any more"),
        (lambda s: words(s, "Cause").remove("lost"), "'lost' is not known any more"),
        (lambda s: fields(s, "Notice").pop("source"), "notice.source is gone"),
    ],
)
def test_what_would_break_a_reader_is_named(change: Change, told: str) -> None:
    changed = copy.deepcopy(schemas())
    change(changed)
    found = breaks(schemas(), changed)
    assert any(told in line for line in found), found


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(more={"type": "object"}),
        lambda s: s[COMMIT]["properties"].update(more=NUMBER),
        lambda s: words(s, "Cause").append("flood"),
        lambda s: s[RECORD]["properties"]["events"]["items"]["anyOf"].append(
            {"type": "object", "properties": {"kind": {"enum": ["flooded"]}}}
        ),
        lambda s: s[COMMIT]["properties"]["step"].update(description="said better"),
    ],
)
def test_additions_break_nobody(change: Change) -> None:
    changed = copy.deepcopy(schemas())
    change(changed)
    assert breaks(schemas(), changed) == []


def test_a_closed_set_of_words_is_never_extended() -> None:
    old, new = {"flag": {"enum": ["on", "off"]}}, {"flag": {"enum": ["on", "off", "dim"]}}
    assert breaks(old, new) != []
    assert breaks(old, {"flag": {"enum": ["off", "on"]}}) == []
