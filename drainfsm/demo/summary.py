"""What the demo proved: both drains, step by step, and the five pass criteria."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from drainfsm.core import events as e
from drainfsm.core.explain import explain
from drainfsm.core.records import Record
from drainfsm.core.rules import broken_rules, events_of
from drainfsm.demo.cluster import DemoAttempt, Place
from drainfsm.drills.criteria import all_complete, cordoned_first, decision_count, decision_of
from drainfsm.store import open_store
from drainfsm.views.attempts import AttemptReport
from drainfsm.views.history import by_attempt
from drainfsm.views.report import report_jobs

Histories = dict[int, list[Record]]
"""By epoch, the records that readers do not skip."""


class DrainResult(msgspec.Struct, kw_only=True):
    """One drain as data."""

    drain_id: str
    decision: str
    """``saved``, ``skipped`` or ``abandoned``."""

    deadline_unix_ms: int
    exited_unix_ms: int
    """When the last agent's process was gone, measured from outside."""

    state: str
    last_trained_step: int
    saved_step: int | None
    resumed_step: int | None
    """First step that the replacement trained."""

    lost_steps: int
    lost_s: float
    """As ``drainfsm report`` tells it."""

    phases_ms: dict[str, int]
    events: list[dict[str, Any]]


class Result(msgspec.Struct, kw_only=True):
    """Everything that ``--json`` writes."""

    drains: list[DrainResult]
    saved_step: int | None
    resumed_step: int | None
    loss_max_abs_diff: float | None
    compared_steps: int
    criteria: dict[str, bool]
    rules_broken: list[str]
    """Invariants that the histories break; empty if all is well."""

    duration_s: float

    @property
    def passed(self) -> bool:
        """All criteria hold, no invariant is broken, and the losses agree at every step."""
        return (
            all(self.criteria.values())
            and not self.rules_broken
            and self.compared_steps > 0
            and self.loss_max_abs_diff == 0.0
        )


def summarize(
    place: Place,
    attempts: Sequence[DemoAttempt],
    histories: Histories,
    reference: Path,
    *,
    duration_s: float,
) -> Result:
    """Judge the finished demo from its logs, its store and its losses."""
    losses = _losses(place.losses)
    reports = attempts_of(histories)
    drains = [
        _drain(
            histories[epoch],
            losses,
            attempt,
            reports[epoch],
            following=histories.get(epoch + 1, []),
        )
        for epoch, attempt in zip((1, 2), attempts, strict=False)
        if any(isinstance(x, e.NoticeReceived) for x in events_of(histories.get(epoch, [])))
    ]
    difference, compared = _compare(losses, _losses(reference))
    saved_step = drains[0].saved_step if drains else None
    return Result(
        drains=drains,
        saved_step=saved_step,
        resumed_step=drains[0].resumed_step if drains else None,
        loss_max_abs_diff=difference,
        compared_steps=compared,
        criteria=_criteria(place, attempts, histories, drains),
        duration_s=duration_s,
        rules_broken=[wrong for h in histories.values() for wrong in broken_rules(h)],
    )


def attempts_of(histories: Histories) -> dict[int, AttemptReport]:
    """What ``drainfsm report`` says of each attempt."""
    records = [record for epoch in sorted(histories) for record in histories[epoch]]
    return {a.epoch: a for job in report_jobs(by_attempt(records)).jobs for a in job.attempts}


def _losses(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _compare(
    interrupted: list[dict[str, Any]], reference: list[dict[str, Any]]
) -> tuple[float | None, int]:
    """Largest difference at the same steps; a step trained twice counts both times."""
    expected = {line["step"]: line["loss"] for line in reference}
    differences = [
        abs(line["loss"] - expected[line["step"]])
        for line in interrupted
        if line["step"] in expected
    ]
    return max(differences, default=None), len(differences)


def _drain(
    history: list[Record],
    losses: list[dict[str, Any]],
    attempt: DemoAttempt,
    report: AttemptReport,
    *,
    following: list[Record],
) -> DrainResult:
    events = list(events_of(history))
    opened = next(x for x in events if isinstance(x, e.NoticeReceived))
    deadline = min(x.effective_deadline_unix_ms for x in events if isinstance(x, e.NoticeReceived))
    decision = decision_of(events)
    restored = [x for x in events_of(following) if isinstance(x, e.CheckpointRestored)]
    resumed = restored[0].step + 1 if restored else None
    trained = [x for x in losses if x["at_unix_ms"] <= attempt.exited_unix_ms]
    last_step = int(trained[-1]["step"]) if trained else -1
    lost = [x for x in trained if resumed is not None and x["step"] >= resumed]
    lost_s = report.work_lost_ms / 1_000
    return DrainResult(
        drain_id=opened.drain_id,
        decision=decision.what,
        deadline_unix_ms=deadline,
        exited_unix_ms=attempt.exited_unix_ms,
        state="exited" if any(isinstance(x, e.Exited) for x in events) else "not over",
        last_trained_step=last_step,
        saved_step=decision.step,
        resumed_step=resumed,
        lost_steps=len({x["step"] for x in lost}),
        lost_s=lost_s,
        phases_ms=_phases(history),
        events=[
            {"at_unix_ms": record.at_unix_ms, **msgspec.to_builtins(event)}
            for record in history
            for event in record.events
        ],
    )


PHASES = {
    "notice to cordon": (e.NoticeReceived, e.NodeCordoned),
    "cordon to agreed step": (e.NodeCordoned, e.StopStepAgreed),
    "agreed to quiesced": (e.StopStepAgreed, e.RanksQuiesced),
    "quiesced to staged": (e.RanksQuiesced, e.BytesStaged),
    "staged to durable": (e.BytesStaged, e.Durable),
    "durable to published": (e.Durable, e.ManifestPublished),
    "published to exited": (e.ManifestPublished, e.Exited),
    "skipped to exited": (e.SaveSkipped, e.Exited),
    "notice to exited": (e.NoticeReceived, e.Exited),
}


def _phases(history: list[Record]) -> dict[str, int]:
    """Milliseconds between the first events of each kind."""
    first: dict[type[e.Fact], int] = {}
    for record in history:
        for event in record.events:
            if isinstance(event, e.Fact):
                first.setdefault(type(event), record.at_unix_ms)
    return {
        name: first[end] - first[start]
        for name, (start, end) in PHASES.items()
        if start in first and end in first
    }


def _criteria(
    place: Place, attempts: Sequence[DemoAttempt], histories: Histories, drains: list[DrainResult]
) -> dict[str, bool]:
    both = [histories.get(epoch, []) for epoch in (1, 2)]
    healthy = [
        any(isinstance(x, e.HealthyStepReached) for x in events_of(histories.get(epoch, [])))
        for epoch in (2, 3)
    ]
    return {
        "nothing_new_scheduled_on_the_nodes": len(drains) == 2
        and all((place.cordoned / attempt.nodes[1]).exists() for attempt in attempts[:2])
        and all(cordoned_first(events_of(history)) for history in both)
        and not {n for later in attempts[2:] for n in later.nodes} & set(_names(place.cordoned)),
        "one_save_decision": len(drains) == 2
        and all(decision_count(events_of(history)) == 1 for history in both),
        "complete_manifest": all_complete(open_store(str(place.store)), job_id=place.job),
        "exit_inside_the_budget": len(drains) == 2
        and all(
            drain.state == "exited" and 0 < drain.exited_unix_ms <= drain.deadline_unix_ms
            for drain in drains
        ),
        "replacement_reached_a_valid_step": all(healthy)
        and all(drain.resumed_step == (drain.saved_step or -1) + 1 for drain in drains),
    }


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def explanations(histories: Histories) -> list[str]:
    """The postmortem of every attempt that drained."""
    return [
        line
        for epoch in sorted(histories)
        if any(isinstance(x, e.NoticeReceived) for x in events_of(histories[epoch]))
        for line in explain(histories[epoch])
    ]
