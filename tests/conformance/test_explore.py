"""The exhaustive search of the real core: the named rules hold in every world, and it can fail."""

from __future__ import annotations

from typing import Any

import pytest

from drainfsm.core import decide_stop
from drainfsm.core.budget import Budget
from drainfsm.core.deadline import budget_of
from drainfsm.core.state import Phase, State
from drainfsm_kit.explore import Bounds, World, explore
from drainfsm_kit.small_world import FAR_UNIX_MS, MODEL_NOTICES

SMALL = Bounds(
    notices=MODEL_NOTICES[1:], instants=(0, 3, 6), node_count=2, drain_count_max=1, crashes=True
)


def test_the_rules_hold_in_every_world() -> None:
    found = explore(SMALL)
    assert (found.broken, found.trace) == ("", ())
    assert len(found.views) > 1_000


def test_the_search_finds_the_shortest_way_to_a_published_manifest() -> None:
    def published(world: World) -> list[str]:
        return ["published"] if world.state.phase is Phase.PUBLISHED else []

    assert explore(SMALL, rules=published).trace == (
        "ReceiveNotice",
        "ReportCordon",
        "ReportPositions",
        "ReportQuiesced",
        "ReportQuiesced",
        "ReportStaged",
        "ReportDurable",
        "ReportVerified",
        "ReportPublished",
    )


def test_a_core_that_counts_on_a_later_deadline_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hopeful(state: State, *, now_unix_ms: int, **changes: Any) -> Budget:
        later = changes | {"deadline_unix_ms": FAR_UNIX_MS}
        return budget_of(state, now_unix_ms=now_unix_ms, **later)

    monkeypatch.setattr(decide_stop, "budget_of", hopeful)
    found = explore(SMALL)
    assert found.broken.startswith("I2: a decision counted on")
    assert found.trace == ("ReceiveNotice",)
