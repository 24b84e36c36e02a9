"""Why and when a run ends, by its record. The records are as measured on real clusters."""

from __future__ import annotations

from typing import Any

import pytest

from drainfsm.core.notice import NoticeClass
from drainfsm_adapters.slurm_evidence import (
    Meaning,
    Warned,
    end_of,
    ending_cause,
    killed_by_unix_ms,
    leaving_nodes,
    maintenance_of,
    meaning_of,
    reservation_of,
)
from drainfsm_adapters.slurm_options import Run
from drainfsm_adapters.slurm_records import SlurmJob, SlurmLimits, SlurmNode, SlurmReservation

NOW_S = 1_795_995_000
NOW = NOW_S * 1_000
RUN = Run(job_id="7", own_id="7", restarts=2)
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
        (record("FAILED+COMPLETING", end_unix_s=NOW_S), "failed"),
        (record("COMPLETING", end_unix_s=NOW_S, reason="NonZeroExitCode"), "failed"),
        (record("OUT_OF_MEMORY", end_unix_s=NOW_S), "out_of_memory"),
        (record("COMPLETING", end_unix_s=NOW_S, reason="OutOfMemory"), "out_of_memory"),
        (record("CANCELLED+COMPLETING", end_unix_s=NOW_S, preempt_unix_s=NOW_S - 5), "cancelled"),
        (record("PREEMPTED+COMPLETING", end_unix_s=NOW_S, preempt_unix_s=NOW_S - 5), "preemption"),
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


@pytest.mark.parametrize(
    ("ended_s", "cause"), [(-10, "cancelled"), (0, "preemption"), (25, "preemption")]
)
def test_an_end_before_the_one_that_a_preemption_announced_is_a_cancel(
    ended_s: int, cause: str
) -> None:
    """Text of 22.05 says no more than COMPLETING."""
    job = record("COMPLETING", end_unix_s=NOW_S + ended_s, preempt_unix_s=NOW_S - 20)
    assert ending_cause(job, grace_end_unix_s=NOW_S) == cause


def meaning(
    job: SlurmJob | None,
    name: str = "SIGTERM",
    *,
    warning_s: float = 120,
    heard: bool = False,
    warning_signal: str = "SIGUSR1",
    shortened: bool = False,
) -> Meaning | None:
    return meaning_of(
        name,
        job,
        run=RUN,
        limits=LIMITS,
        grace_ms=GRACE_MS,
        warning=Warned(name=warning_signal, lead_s=warning_s, heard=heard),
        signalled_unix_ms=NOW,
        shortened=shortened,
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


START_S = NOW_S - 3_600


@pytest.mark.parametrize(
    "job",
    [
        record(start_unix_s=START_S, end_unix_s=NOW_S + 120),
        record(start_unix_s=START_S, end_unix_s=NOW_S + 185),
        record(start_unix_s=NOW_S - 16, end_unix_s=NOW_S + 44),
    ],
)
def test_the_warning_says_no_more_than_the_record(job: SlurmJob) -> None:
    assert meaning(job, "SIGUSR1") is None


def test_in_the_grace_of_a_preemption_any_signal_is_explained() -> None:
    preempted = record(end_unix_s=NOW_S + 20, preempt_unix_s=NOW_S)
    assert (meaning(preempted, "SIGUSR1"), meaning(preempted, "SIGTERM")) == (None, None)


LATE = record(start_unix_s=START_S, end_unix_s=NOW_S + 60)
IN_TIME = record(start_unix_s=START_S, end_unix_s=NOW_S + 130)


@pytest.mark.parametrize(
    ("job", "name", "options"),
    [
        (IN_TIME, "SIGTERM", {}),
        (IN_TIME, "SIGUSR2", {}),
        (IN_TIME, "SIGUSR1", {"heard": True}),
        (IN_TIME, "SIGUSR1", {"warning_signal": ""}),
        (IN_TIME, "SIGUSR1", {"warning_signal": "SIGUSR2"}),
        (LATE, "SIGUSR1", {}),
    ],
)
def test_what_is_not_the_warning_is_heard_close_to_the_end_too(
    job: SlurmJob, name: str, options: dict[str, Any]
) -> None:
    said = meaning(job, name, **options)
    assert said is not None
    assert (said.cause, said.deadline_unix_ms) == ("unknown", NOW + GRACE_MS)


def test_where_the_limit_was_lowered_the_warning_comes_late() -> None:
    assert meaning(LATE, "SIGUSR1", shortened=True) is None


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
    (found,) = leaving_nodes((idle, drained, own))
    assert (found.cause, found.notice_class) == ("node_drain", NoticeClass.SOFT)
    assert (found.nodes, found.detail) == (("n2",), "n2: bad memory")
    assert (found.stated_unix_ms, found.derived_unix_ms) == (None, None)
    assert leaving_nodes((idle, own)) == ()


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("MIXED+FAIL", "node_failing"),
        ("FAILING", "node_failing"),
        ("MIXED+REBOOT_REQUESTED", "node_reboot"),
        ("MIXED+DRAIN+REBOOT_REQUESTED", "node_reboot"),
        ("MIXED+DRAIN+REBOOT_ISSUED", "node_reboot"),
        ("DRAINING", "node_drain"),
    ],
)
def test_a_node_that_fails_or_waits_for_its_reboot_goes_too(state: str, cause: str) -> None:
    (found,) = leaving_nodes((SlurmNode(name="n2", states=frozenset(state.split("+"))),))
    assert (found.cause, found.notice_class, found.nodes) == (cause, NoticeClass.SOFT, ("n2",))


def test_maintenance_of_our_nodes_is_soft_and_due_when_it_begins() -> None:
    def reservation(
        name: str, flags: str = "MAINT,IGNORE_JOBS", **changed: Any
    ) -> SlurmReservation:
        fields = {
            "nodes": frozenset({"n1", "n9"}),
            "start_unix_s": NOW_S + 600,
            "end_unix_s": NOW_S + 900,
            **changed,
        }
        return SlurmReservation(name=name, flags=frozenset(flags.split(",")), **fields)

    found = maintenance_of(
        (
            reservation("patch"),
            reservation("class", "SPEC_NODES"),
            reservation("elsewhere", nodes=frozenset({"n7"})),
            reservation("past", start_unix_s=NOW_S - 900, end_unix_s=NOW_S - 600),
        ),
        nodes=frozenset({"n1", "n2"}),
        now_unix_ms=NOW,
    )
    assert [(one.key, one.cause, one.stated_unix_ms, one.nodes) for one in found] == [
        ("maintenance/patch", "host_maintenance", NOW + 600_000, ("n1",))
    ]


def reserved(name: str, end_unix_s: int, *flags: str, node: str = "n1") -> SlurmReservation:
    return SlurmReservation(
        name=name,
        nodes=frozenset({node}),
        flags=frozenset(flags),
        start_unix_s=NOW_S,
        end_unix_s=end_unix_s,
    )


def test_a_reservation_ends_the_run_softly() -> None:
    job = record(reservation="class", nodes="n[1-2]")
    others = (reserved("else", NOW_S + 60), reserved("class", NOW_S + 600))
    found = reservation_of(job, others, now_unix_ms=NOW)
    assert found is not None
    assert (found.cause, found.notice_class, found.stated_unix_ms) == (
        "reservation_end",
        NoticeClass.SOFT,
        NOW + 600_000,
    )
    assert reservation_of(job, others[:1], now_unix_ms=NOW) is None


def test_of_several_reservations_the_one_with_the_jobs_nodes_ends_it() -> None:
    job = record(reservation="a,b", nodes="n[1-2]")
    others = (reserved("a", NOW_S + 60, node="n7"), reserved("b", NOW_S + 600, node="n2"))
    found = reservation_of(job, others, now_unix_ms=NOW)
    assert found is not None
    assert found.stated_unix_ms == NOW + 600_000


def test_a_flexible_reservation_ends_no_job() -> None:
    job = record(reservation="flex", nodes="n1")
    assert reservation_of(job, (reserved("flex", NOW_S + 60, "FLEX"),), now_unix_ms=NOW) is None
