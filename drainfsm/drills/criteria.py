"""The five criteria of a drain, read off its log and its store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from drainfsm.core import events as e
from drainfsm.core.words import CordonOutcome
from drainfsm.errors import DrainfsmError
from drainfsm.store import CommitLog, ObjectStore
from drainfsm.store.gc import GENERATIONS
from drainfsm.store.generations import read_manifest, verify_generation

CRITERIA = {
    "nothing_new_scheduled": "nothing new was scheduled onto the drained node",
    "one_save_decision": "one decision on the save",
    "complete_manifests": "every committed checkpoint is complete",
    "exit_inside_the_budget": "no process left after the deadline",
    "valid_step_after": "the replacement made a valid step",
}
"""By name, in words."""


class SaveDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a drain's save."""

    what: str
    """``saved``, ``skipped``, ``abandoned``, ``cancelled`` or ``none``."""

    step: int | None
    """In the checkpoint that the replacement is to restore."""


def decision_of(events: Sequence[e.Event]) -> SaveDecision:
    for event in reversed(events):
        match event:
            case e.ManifestPublished():
                return SaveDecision(what="saved", step=event.step)
            case e.SaveSkipped():
                return SaveDecision(what="skipped", step=event.restore_step)
            case e.SaveAbandoned():
                return SaveDecision(what="abandoned", step=event.restore_step)
            case e.DrainCancelled():
                return SaveDecision(what="cancelled", step=None)
            case _:
                pass
    return SaveDecision(what="none", step=None)


def decision_count(events: Iterable[e.Event]) -> int:
    """Skips and saves; a save that is given up was decided once."""
    return sum(isinstance(event, e.SaveDecided | e.SaveSkipped) for event in events)


def cordoned_first(events: Iterable[e.Event]) -> bool:
    """The cordon succeeded, and is on record before anything was decided about the save."""
    for event in events:
        if isinstance(event, e.NodeCordoned):
            return event.outcome == CordonOutcome.SUCCESS
        if isinstance(event, e.StopStepAgreed | e.SaveSkipped):
            return False
    return False


def all_complete(store: ObjectStore, *, job_id: str) -> bool:
    """Something is committed, and all of it is whole, by name, size and checksum."""
    try:
        commits = [commit for _, commit in CommitLog(store, job_id=job_id).commits()]
        for commit in commits:
            manifest = read_manifest(
                store, generation_id=commit.generation_id, digest=commit.manifest_digest
            )
            verify_generation(store, manifest, checksums=True)
    except DrainfsmError:
        return False
    return bool(commits)


def left_over(store: ObjectStore, *, job_id: str) -> tuple[str, ...]:
    """Generations that hold files and that nobody committed: what `drainfsm gc` removes."""
    committed = {commit.generation_id for _, commit in CommitLog(store, job_id=job_id).commits()}
    there = {name.split("/", 1)[0] for name in store.list(GENERATIONS)}
    return tuple(sorted(there - committed))
