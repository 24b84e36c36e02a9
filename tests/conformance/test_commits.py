"""What attempts and a clean-up do to one store is a behaviour of ``Commits``."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.errors import SlotTakenError
from drainfsm.store import ObjectStore, gc
from drainfsm.store.commits import CommitLog
from drainfsm.store.retention import Holding
from drainfsm_kit import traces
from drainfsm_kit.commits_world import ATTEMPTS, RANKS, SAVES, walk

WALKS = range(60)
Plant = Callable[[pytest.MonkeyPatch], None]
CONFIG = f"""SPECIFICATION TraceSpec
CONSTANTS
  Attempts = {{{", ".join(map(str, ATTEMPTS))}}}
  Ranks = {{{", ".join(map(str, RANKS))}}}
  Saves = {SAVES}
  PowerLosses = 0
  Cleans = TRUE
  Fault = "none"
INVARIANT Told
"""

refused = partial(traces.refused, module="CommitsTrace", config=CONFIG)

pytestmark = [pytest.mark.tlc, pytest.mark.timeout(0)]


def test_runs_of_the_code_are_behaviours_of_the_model(models: Path, tmp_path: Path) -> None:
    walks = [walk(seed) for seed in WALKS]
    assert refused(walks, models, tmp_path) == []
    taken = Counter(step["action"] for trace in walks for step in trace)
    assert all(taken[action] > 3 for action in ("Crash", "Derive", "Surveyed", "DeletePart"))


def _reads_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean-up that reads the commits, and only then the newest claim."""
    survey = gc.survey

    def swapped(store: ObjectStore, *, job_id: str) -> Holding:
        commits = tuple(commit for _, commit in CommitLog(store, job_id=job_id).commits())
        return replace(survey(store, job_id=job_id), commits=commits)

    monkeypatch.setattr("drainfsm_kit.commits_world.survey", swapped)


def _live_epochs_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drainfsm.store.retention._uncommitted", lambda *_, **named: (True, ""))


def _not_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitLog, "_check_claimed", lambda *given: None)


def _rivals_slot_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(store: ObjectStore, name: str, data: bytes, **_: object) -> bool:
        with contextlib.suppress(SlotTakenError):
            store.put_if_absent(name, data)
        return True

    monkeypatch.setattr("drainfsm.store.commits.put_settled", put)


@pytest.mark.parametrize(
    "plant",
    [_reads_swapped, _live_epochs_cleaned, _not_fenced, _rivals_slot_taken_for_ours],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_code_that_does_something_else_is_refused(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, models: Path, tmp_path: Path
) -> None:
    plant(monkeypatch)
    assert refused([walk(seed) for seed in WALKS], models, tmp_path)
