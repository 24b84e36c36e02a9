"""Why and when a run ends, by its record. The records are as measured on real clusters."""

from __future__ import annotations

from typing import Any

import pytest

from drainfsm.core.notice import NoticeClass
from drainfsm_adapters.slurm_evidence import (
    Meaning,
    drained_of,
    end_of,
    killed_by_unix_ms,
    meaning_of,
    reservation_of,
)
from drainfsm_adapters.slurm_options import Run
from drainfsm_adapters.slurm_records import SlurmJob, SlurmLimits, SlurmNode

NOW_S = 1_795_995_000
NOW = NOW_S * 1_000
RUN = Run(job_id="7", restarts=2)
LIMITS = SlurmLimits(kill_wait_s=5, grace_s=20, preempt_mode="REQUEUE")
GRACE_MS = 20_000
KILLED_BY = NOW + 4_500


def record(state: str = "RUNNING", **fields: Any) -> SlurmJob:
    given = {"restarts": 2, "end_unix_s": NOW_S + 3_600, **fields}
    return SlurmJob(job_id="7", states=frozenset(state.split("+")), **given)


def end(job: SlurmJob, *, shortened: bool = False) -> tuple[str, str, int | None] | None:
    found = end_of(
        job, run=RUN, limits=LIMITS, grace_ms=GRACE_MS, now_unix_ms=NOW, shortened=shortened
    )
    if found is None:
        return None
    return found.cause, found.notice_class, found.stated_unix_ms or found.derived_unix_ms


def test_the_limit_is_soft_for_it_can_be_moved() -> None:
    assert end(record()) == ("time_limit", NoticeClass.SOFT, NOW + 3_600_000)
    lowered = end(record(end_unix_s=NOW_S + 60), shortened=True)
    assert lowered == ("time_limit_shortened", NoticeClass.SOFT, NOW + 60_000)


@pytest.mark.parametrize("state", ["RUNNING", "RUNNING+SIGNALING", "SUSPENDED", "CONFIGURING"])
def test_any_state_that_is_no_end_counts_as_running(state: str) -> None:
    assert end(record(state)) == ("time_limit", NoticeClass.SOFT, NOW + 3_600_000)


@pytest.mark.parametrize("end_unix_s", [None, NOW_S + 400 * 86_400])
def test_no_limit_is_no_notice(end_unix_s: int | None) -> None:
    assert end(record(end_unix_s=end_unix_s)) is None


def test_a_preemption_is_hard_and_ends_at_the_end_of_its_grace() -> None:
    preempted = record(preempt_unix_s=NOW_S, end_unix_s=NOW_S + 20)
    assert end(preempted) == ("preemption", NoticeClass.HARD, NOW + 20_000)


def test_an_end_that_has_passed_leaves_what_kill_wait_leaves() -> None:
    assert end(record(end_unix_s=NOW_S)) == ("time_limit", NoticeClass.HARD, KILLED_BY)


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (record("COMPLETING", end_unix_s=NOW_S), "cancelled"),
        (record("COMPLETING+CANCELLED", end_unix_s=NOW_S), "cancelled"),
        (record("COMPLETING", end_unix_s=NOW_S, reason="TimeLimit"), "time_limit"),
        (record("TIMEOUT+COMPLETING", end_unix_s=NOW_S), "time_limit"),
        (record("PREEMPTED", end_unix_s=NOW_S), "preemption"),
        (record("NODE_FAIL", end_unix_s=NOW_S), "node_failure"),
        (record("COMPLETING", restarts=3), "requeue"),
        (record("PENDING", restarts=3, end_unix_s=None), "requeue"),
        (record("RUNNING", restarts=3), "requeue"),
    ],
)
def test_a_run_that_is_being_ended_has_kill_wait(job: SlurmJob, cause: str) -> None:
    assert end(job) == (cause, NoticeClass.HARD, KILLED_BY)


def test_an_end_that_was_heard_late_leaves_less() -> None:
    assert end(record("COMPLETING", end_unix_s=NOW_S - 3)) == (
        "cancelled",
        NoticeClass.HARD,
        KILLED_BY - 3_000,
    )


@pytest.mark.parametrize(
    ("kill_wait_s", "grace_ms", "left_ms"),
    [(30, 60_000, 29_500), (30, 20_000, 20_000), (None, 20_000, 20_000), (2, 20_000, 4_500)],
)
def test_kill_wait_only_ever_shortens_the_grace(
    kill_wait_s: int | None, grace_ms: int, left_ms: int
) -> None:
    limits = SlurmLimits(kill_wait_s=kill_wait_s)
    by = killed_by_unix_ms(signalled_unix_ms=NOW, limits=limits, grace_ms=grace_ms)
    assert by - NOW == left_ms


def meaning(
    job: SlurmJob | None, name: str = "SIGTERM", *, warning_s: float = 120
) -> Meaning | None:
    return meaning_of(
        name,
        job,
        run=RUN,
        limits=LIMITS,
        grace_ms=GRACE_MS,
        warning_s=warning_s,
        signalled_unix_ms=NOW,
    )


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (record("COMPLETING", end_unix_s=NOW_S), "cancelled"),
        (record("COMPLETING", end_unix_s=NOW_S, reason="TimeLimit"), "time_limit"),
        (record("COMPLETING", restarts=3), "requeue"),
        (record(end_unix_s=NOW_S), "time_limit"),
        (record(end_unix_s=NOW_S, preempt_unix_s=NOW_S - 20), "preemption"),
    ],
)
def test_a_signal_that_ends_the_run_is_followed_by_a_kill(job: SlurmJob, cause: str) -> None:
    said = meaning(job)
    assert said is not None
    assert (said.cause, said.deadline_unix_ms) == (cause, KILLED_BY)


@pytest.mark.parametrize(
    "job",
    [
        record(end_unix_s=NOW_S + 120),
        record(end_unix_s=NOW_S + 185),
        record(end_unix_s=NOW_S + 20, preempt_unix_s=NOW_S),
    ],
)
def test_a_warning_says_no_more_than_the_record(job: SlurmJob) -> None:
    assert meaning(job, "SIGUSR1") is None
    assert meaning(job, "SIGTERM") is None


def test_a_signal_that_nothing_explains_has_an_unknown_cause_and_the_grace() -> None:
    for name in ("SIGTERM", "SIGUSR1"):
        said = meaning(record(), name)
        assert said is not None
        assert (said.cause, said.deadline_unix_ms) == ("unknown", NOW + GRACE_MS)


def test_no_grace_reaches_beyond_the_end() -> None:
    said = meaning(record(end_unix_s=NOW_S + 10), warning_s=-60)
    assert said is not None
    assert said.deadline_unix_ms == NOW + 10_000


def test_without_a_record_a_sigterm_is_taken_for_the_end() -> None:
    term, warning = meaning(None, "SIGTERM"), meaning(None, "SIGUSR1")
    assert term is not None
    assert warning is not None
    assert (term.cause, term.deadline_unix_ms) == ("unknown", KILLED_BY)
    assert (warning.cause, warning.deadline_unix_ms) == ("unknown", None)


def test_a_drained_node_is_soft_and_has_no_deadline() -> None:
    drained = SlurmNode(name="n2", states=frozenset({"MIXED", "DRAIN"}), reason="bad memory")
    own = SlurmNode(name="n3", states=frozenset({"MIXED", "DRAIN"}), reason="drainfsm: job leaves")
    idle = SlurmNode(name="n1", states=frozenset({"IDLE"}))
    found = drained_of((idle, drained, own))
    assert found is not None
    assert (found.cause, found.notice_class) == ("node_drain", NoticeClass.SOFT)
    assert (found.nodes, found.detail) == (("n2",), "n2: bad memory")
    assert (found.stated_unix_ms, found.derived_unix_ms) == (None, None)
    assert drained_of((idle, own)) is None


def test_a_reservation_ends_the_run_softly() -> None:
    found = reservation_of(NOW_S + 600, name="maint", now_unix_ms=NOW)
    assert found is not None
    assert (found.cause, found.notice_class, found.stated_unix_ms) == (
        "reservation_end",
        NoticeClass.SOFT,
        NOW + 600_000,
    )
    assert reservation_of(None, name="maint", now_unix_ms=NOW) is None
