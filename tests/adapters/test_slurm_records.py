"""What Slurm printed, read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainfsm_adapters.slurm_records import (
    SlurmJob,
    ahead_s,
    by_our_clock,
    hosts_of,
    job_of,
    limits_of,
    nodes_of,
    reservations_of,
)

DATA = Path(__file__).parent / "data" / "slurm"


def printed(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def job(name: str, job_id: str) -> SlurmJob:
    found = job_of(printed(name), job_id=job_id)
    assert found is not None
    return found


def test_a_running_job_is_read_past_the_fields_in_its_name_and_comment() -> None:
    assert job("running.txt", "1") == SlurmJob(
        job_id="1",
        states=frozenset({"RUNNING"}),
        reason="None",
        start_unix_s=1795995210,
        end_unix_s=1795998810,
        partition="low",
        nodes="n1",
    )


def test_a_preempted_job_still_runs_and_ends_earlier() -> None:
    found = job("preempted.txt", "1")
    assert (found.states, found.ending) == (frozenset({"RUNNING"}), False)
    assert (found.end_unix_s, found.preempt_unix_s) == (1795995232, 1795995212)


def test_a_job_that_is_being_ended() -> None:
    assert job("cancelling.txt", "3").ending
    assert job("cancelling.txt", "3").restarts == 0
    assert job("requeued.txt", "1").ending
    assert job("requeued.txt", "1").restarts == 1


def test_a_task_of_an_array_is_found_by_its_own_id() -> None:
    assert job("array.txt", "20").states == {"RUNNING"}
    assert job("array.txt", "14").states == {"PENDING"}
    assert job_of(printed("array.txt"), job_id="2") is None


def test_times_that_are_no_numbers_are_not_known() -> None:
    assert job("array.txt", "20").end_unix_s is None


def test_json_of_22_05() -> None:
    found = job("squeue-22.05.json", "1")
    assert (found.states, found.end_unix_s, found.preempt_unix_s) == (
        frozenset({"RUNNING"}),
        1795995232,
        1795995212,
    )
    assert (found.restarts, found.requeue, found.nodes) == (0, True, "n1")
    assert job("squeue-22.05.json", "2").preempt_unix_s is None


def test_json_of_newer_versions() -> None:
    found = job("scontrol-new.json", "42")
    assert found == SlurmJob(
        job_id="42",
        states=frozenset({"COMPLETING", "CANCELLED"}),
        reason="None",
        restarts=3,
        requeue=False,
        end_unix_s=1795995232,
        preempt_unix_s=1795995212,
        partition="low",
        nodes="n[1-2]",
        reservation="maint",
    )
    unlimited = job("scontrol-new.json", "43")
    assert (unlimited.end_unix_s, unlimited.preempt_unix_s) == (None, None)
    assert not unlimited.ending


@pytest.mark.parametrize("output", ["", "\n", "JobId=", "No jobs in the system", '{"jobs": []}'])
def test_what_names_no_job_is_none(output: str) -> None:
    assert job_of(output, job_id="1") is None


def test_the_state_of_nodes() -> None:
    first, second = nodes_of(printed("nodes.txt"))
    assert (first.name, first.drained, first.reason) == ("n1", False, "")
    assert (second.name, second.drained) == ("n2", True)
    assert second.reason == "bad memory in slot 3"


def test_the_sites_limits() -> None:
    limits = limits_of(config=printed("config.txt"), partition=printed("partition.txt"))
    assert (limits.kill_wait_s, limits.grace_s, limits.preempt_mode) == (5, 20, "REQUEUE")
    assert limits.preemption_requeues
    unknown = limits_of(config="", partition="")
    assert (unknown.kill_wait_s, unknown.grace_s) == (None, None)
    assert not unknown.preemption_requeues


def test_a_reservation() -> None:
    (found,) = reservations_of(printed("reservation.txt"))
    assert (found.name, found.nodes, found.start_unix_s, found.end_unix_s) == (
        "maint",
        frozenset({"n1"}),
        1795995218,
        1795995818,
    )
    assert "IGNORE_JOBS" in found.flags
    assert reservations_of("No reservations in the system") == ()


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],m5", ["n1", "n2", "n3", "n7", "m5"]),
        ("gpu[008-010]", ["gpu008", "gpu009", "gpu010"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
        ("n[1-99999999]", []),
        ("n[x]", []),
    ],
)
def test_host_lists(expression: str, hosts: list[str]) -> None:
    assert list(hosts_of(expression)) == hosts


@pytest.mark.parametrize(
    "name",
    [
        "x UserId=0 JobState=CANCELLED Restarts=9",
        "train.sbatch",
        "x UserId=root(0) GroupId=root(0) MCS_label=N/A JobState=CANCELLED",
        "JobId=9",
        "",
    ],
)
def test_a_job_may_have_any_name(name: str) -> None:
    line = printed("cancelling.txt").replace("JobName=wrap", f"JobName={name}")
    found = job_of(line, job_id="3", job_name=name)
    assert found is not None
    assert (found.states, found.restarts) == (frozenset({"COMPLETING"}), 0)


def test_a_name_that_was_changed_meanwhile_is_read_past_too() -> None:
    changed = "JobName=x UserId=0 JobState=CANCELLED"
    line = printed("cancelling.txt").replace("JobName=wrap", changed)
    found = job_of(line, job_id="3", job_name="wrap")
    assert found is not None
    assert found.states == {"COMPLETING"}


NULLS = """{"jobs": [null, {"job_id": 7, "job_state": null, "state_reason": null, "requeue": null,
 "restart_cnt": null, "start_time": {"set": true, "infinite": false, "number": 1795995210},
 "end_time": {"set": null, "infinite": null, "number": 1795995232.0}, "partition": null,
 "preempt_time": {"set": true, "infinite": false, "number": null}, "nodes": null,
 "resv_name": null}, {"job_id": 8, "job_state": ["RUNNING", null], "end_time": Infinity,
 "preempt_time": null}]}"""


def test_json_may_hold_null_and_infinity_anywhere() -> None:
    found = job_of(NULLS, job_id="7")
    assert found == SlurmJob(
        job_id="7",
        states=frozenset({"UNKNOWN"}),
        start_unix_s=1795995210,
        end_unix_s=1795995232,
    )
    endless = job_of(NULLS, job_id="8")
    assert endless is not None
    assert (endless.states, endless.end_unix_s) == (frozenset({"RUNNING"}), None)
    assert job_of('{"jobs": null}', job_id="7") is None


@pytest.mark.parametrize(
    ("stated_unix_s", "ahead"), [(1_000, 0), (1_002, 0), (998, 0), (1_060, 61), (940, -59)]
)
def test_a_clock_is_off_by_what_slurmctld_says_the_time_is(stated_unix_s: int, ahead: int) -> None:
    """Rounded so that no end is later than it is; a little is taken for nothing."""
    config = f"Configuration data as of {stated_unix_s}\nKillWait = 30 sec\n"
    assert ahead_s(config, sent_unix_ms=1_000_000, received_unix_ms=1_000_400) == ahead


@pytest.mark.parametrize(
    "config", ["", "Configuration data as of 2026-11-30T09:00:00\n", "as of 7"]
)
def test_where_slurmctld_does_not_tell_the_time_its_clock_is_ours(config: str) -> None:
    assert ahead_s(config, sent_unix_ms=1_000_000, received_unix_ms=1_000_400) == 0


def test_all_times_of_a_record_are_moved_alike() -> None:
    one = SlurmJob(job_id="1", states=frozenset(), start_unix_s=100, end_unix_s=200)
    moved = by_our_clock(one, 60)
    assert (moved.start_unix_s, moved.end_unix_s, moved.preempt_unix_s) == (40, 140, None)
