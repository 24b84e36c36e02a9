"""Who makes room for whom, when a job comes back, and chains of evictions; with exact numbers."""

from __future__ import annotations

import io
import json
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from drainfsm.cli.main import main
from drainfsm.cli.stores import decisions_in
from drainfsm.core import inputs as i
from drainfsm.core.codec import encode_lines
from drainfsm.core.events import HealthyStepReached
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.errors import ConfigError
from drainfsm.policy.cascade import Times, cascades, evictions_in
from drainfsm.policy.decisions import read_decisions, record_decision
from drainfsm.policy.events import (
    CascadeDetected,
    Ended,
    Eviction,
    PastAttempt,
    PreemptionDecided,
    Row,
    Running,
    Waiting,
)
from drainfsm.policy.policy_text import NOT_AGAIN, explain_decision
from drainfsm.policy.preemption import decide_preemption
from drainfsm.policy.restarts import decide_after, decide_restart
from drainfsm.policy.rules import (
    CascadeRules,
    PreemptionRules,
    RestartRules,
    Tier,
    read_rules,
    slurm_settings,
)
from drainfsm.store.base import ObjectStore
from drainfsm.store.commits import CommitLog
from drainfsm.testing.scenario import Scenario
from drainfsm.testing.stores import new_store
from drainfsm_kit.past import MINUTE_MS, NOW, leave
from drainfsm_kit.thrashing import run

RULES = PreemptionRules()


def running(job: str, tier: str, *, minutes: int = 60, **fields: object) -> Running:
    return msgspec.convert(
        {"job_id": job, "tier": tier, "started_unix_ms": NOW - minutes * MINUTE_MS, **fields},
        Running,
    )


def victims(waiting: Waiting, *jobs: Running, free: int = 0) -> tuple[str, ...]:
    return decide_preemption(waiting, jobs, RULES, free_capacity=free, now_unix_ms=NOW).victims


# --- preemption ---------------------------------------------------------------------------------


def test_a_tier_preempts_those_behind_it_and_no_other() -> None:
    jobs = [running(tier, tier) for tier in ("interactive", "production", "training", "batch")]
    for tier, behind in (
        ("interactive", {"production", "training", "batch"}),
        ("production", {"training", "batch"}),
        ("training", {"batch"}),
        ("batch", set()),
    ):
        alone = {job.job_id for job in jobs if victims(Waiting(job_id="w", tier=tier), job)}
        assert alone == behind


def test_the_lowest_tier_with_the_least_at_risk_leaves_and_no_more_than_needed() -> None:
    jobs = (
        running("much", "batch", at_risk_ms=9_000),
        running("little", "batch", at_risk_ms=1_000),
        running("training", "training"),
    )
    assert victims(Waiting(job_id="w", tier="production"), *jobs) == ("little",)
    two = Waiting(job_id="w", tier="production", capacity=2)
    assert victims(two, *jobs) == ("little", "much")
    assert victims(two, *jobs, free=1) == ("little",)
    assert victims(two, *jobs, free=2) == ()
    large = running("large", "training", capacity=8)
    eight = Waiting(job_id="w", tier="production", capacity=8)
    assert victims(eight, *jobs, large) == ("large",)


def test_nobody_leaves_where_it_would_not_be_enough() -> None:
    wants = Waiting(job_id="w", tier="production", capacity=3)
    decision = decide_preemption(
        wants, [running("b", "batch")], RULES, free_capacity=1, now_unix_ms=NOW
    )
    assert decision.victims == ()
    assert not decision.starts
    assert decision.spared[0].reason == "it would not be enough"


def test_the_minimum_run_time_protects_and_each_exemption_is_on_record() -> None:
    young = running("young", "batch", minutes=29)
    assert victims(Waiting(job_id="w", tier="production"), young) == ()
    assert victims(Waiting(job_id="w", tier="production"), running("old", "batch", minutes=30))
    for exempt in (
        Waiting(job_id="w", tier="interactive"),
        Waiting(job_id="w", tier="production", exemption="rack 7 must be emptied"),
    ):
        decision = decide_preemption(exempt, [young], RULES, free_capacity=0, now_unix_ms=NOW)
        assert (decision.victims, decision.exempted) == (("young",), ("young",))
        assert exempt.exemption in decision.reason


def test_who_was_evicted_often_enough_is_left_alone_for_a_while() -> None:
    hour = 60 * MINUTE_MS
    recent = tuple(NOW - n * hour for n in range(4))
    waiting = Waiting(job_id="w", tier="interactive")
    assert victims(waiting, running("b", "batch", evicted_unix_ms=recent)) == ()
    past = (NOW - 24 * hour, *recent[:3])
    assert victims(waiting, running("b", "batch", evicted_unix_ms=past)) == ("b",)


# --- restarts -----------------------------------------------------------------------------------


def pauses(ended: Ended, count: int, rules: RestartRules, *, chance: float = 0.0) -> list[float]:
    row, found = Row(), []
    for epoch in range(1, count + 1):
        attempt = PastAttempt(epoch=epoch, ended=ended, lived_ms=1_000)
        decision = decide_restart(row, attempt, rules, job_id="j", chance=chance, now_unix_ms=NOW)
        row = decision.row
        found.append(decision.pause_ms / 1_000 if decision.action == "restart" else -1.0)
    return found


def test_three_preemptions_are_free_and_then_the_pause_doubles() -> None:
    rules = RestartRules(pause_s=10, pause_s_max=60, preemptions_max=7)
    assert pauses(Ended.PREEMPTED, 8, rules) == [10, 10, 10, 20, 40, 60, 60, -1]
    assert pauses(Ended.PREEMPTED, 5, rules, chance=1.0) == [10, 10, 10, 10, 20]


def test_losses_have_a_budget_of_their_own_and_no_free_ones() -> None:
    rules = RestartRules(pause_s=10, pause_s_max=60, failures_max=4)
    assert pauses(Ended.LOST, 5, rules) == [10, 20, 40, 60, -1]
    row = Row(preemption_count=20, failure_count=1)
    attempt = PastAttempt(epoch=9, ended=Ended.LOST, lived_ms=0)
    decision = decide_restart(row, attempt, rules, job_id="j", chance=0, now_unix_ms=NOW)
    assert (decision.action, decision.pause_ms) == ("restart", 20_000)


@pytest.mark.parametrize(
    ("lived_s", "progressed", "count"),
    [(300, True, 1), (300, None, 1), (300, False, 6), (299, True, 6)],
)
def test_only_an_attempt_that_lived_and_got_further_ends_the_row(
    lived_s: int, progressed: bool | None, count: int
) -> None:
    attempt = PastAttempt(
        epoch=6, ended=Ended.PREEMPTED, lived_ms=lived_s * 1_000, progressed=progressed
    )
    decision = decide_restart(
        Row(preemption_count=5), attempt, RestartRules(), job_id="j", chance=0, now_unix_ms=NOW
    )
    assert decision.row.preemption_count == count


@pytest.mark.parametrize(
    ("ended", "action"),
    [
        (Ended.FINISHED, "end"),
        (Ended.FAILED, "end"),
        (Ended.SUPERSEDED, "end"),
        (Ended.NO_PROGRESS, "hold"),
    ],
)
def test_what_ended_by_itself_is_not_started_and_what_gets_no_further_is_held(
    ended: Ended, action: str
) -> None:
    attempt = PastAttempt(epoch=1, ended=ended, lived_ms=1)
    decision = decide_restart(Row(), attempt, RestartRules(), job_id="j", chance=0, now_unix_ms=NOW)
    assert (decision.action, decision.pause_ms) == (action, 0)


def test_a_job_that_is_started_again_after_it_was_held_begins_a_new_row() -> None:
    lost = [PastAttempt(epoch=epoch, ended=Ended.LOST, lived_ms=1) for epoch in range(1, 5)]
    rules = RestartRules(failures_max=2)
    held = decide_after(lost[:3], rules, job_id="j", now_unix_ms=NOW)
    assert (held.action, held.row.failure_count) == ("hold", 3)
    again = decide_after(lost, rules, job_id="j", now_unix_ms=NOW)
    assert (again.action, again.row.failure_count) == ("restart", 1)


def test_a_decision_that_does_not_follow_from_its_inputs_is_told() -> None:
    attempt = PastAttempt(epoch=1, ended=Ended.LOST, lived_ms=1)
    decision = decide_restart(
        Row(), attempt, RestartRules(), job_id="j", chance=0.5, now_unix_ms=NOW
    )
    assert NOT_AGAIN not in "".join(explain_decision(decision))
    forged = msgspec.structs.replace(decision, pause_ms=0)
    assert NOT_AGAIN in "".join(explain_decision(forged))
    waiting = Waiting(job_id="w", tier="production")
    chosen = decide_preemption(
        waiting, [running("b", "batch")], RULES, free_capacity=0, now_unix_ms=NOW
    )
    assert NOT_AGAIN not in "".join(explain_decision(chosen))
    assert NOT_AGAIN in "".join(explain_decision(msgspec.structs.replace(chosen, victims=())))


# --- cascades -----------------------------------------------------------------------------------


def chain(*jobs: str, apart_min: int = 10) -> list[Eviction]:
    return [
        Eviction(at_unix_ms=NOW + number * apart_min * MINUTE_MS, by=by, victim=victim)
        for number, (by, victim) in enumerate(pairwise(jobs))
    ]


def test_a_chain_is_told_at_its_third_hop_and_a_circle_when_it_closes() -> None:
    rules = CascadeRules()
    assert cascades(chain("a", "b", "c"), rules) == []
    (found,) = cascades(chain("a", "b", "c", "d"), rules)
    assert (found.reason, found.cycle) == ("a evicts b evicts c evicts d", False)
    (circle,) = cascades(chain("a", "b", "a"), rules)
    assert (circle.reason, circle.cycle) == ("a evicts b evicts a", True)
    assert cascades(chain("a", "b", "c", "d", apart_min=31), rules) == []
    assert "cascade of 3 evictions within 20.0 min" in "".join(explain_decision(found))


def test_thrashing_is_a_share_of_the_time() -> None:
    rules = CascadeRules()
    assert not Times(starting_ms=10, draining_ms=15, training_ms=100).thrashes(rules)
    assert Times(starting_ms=11, draining_ms=15, training_ms=100).thrashes(rules)
    assert Times(starting_ms=11).thrashes(rules)
    assert not Times().thrashes(rules)


def drained(job: str, *, by: str, after_ms: int = 0) -> list[bytes]:
    """Lines of the log of a job that trained for a while, and was evicted."""
    scenario = Scenario(job_id=job)
    scenario.when(HealthyStepReached(step=1))
    scenario.wait(elapsed_ms=MINUTE_MS + after_ms)
    notice = Notice(
        source="notify",
        native_id="1",
        cause=Cause.PREEMPTION,
        notice_class=NoticeClass.HARD,
        deadline_unix_ms=scenario.now_unix_ms + 60_000,
        received_unix_ms=scenario.now_unix_ms,
        evicted_by=by,
    )
    scenario.given(i.ReceiveNotice(notice=notice), scenario.cordoned())
    return encode_lines(scenario.history).splitlines(keepends=True)


def test_a_cascade_is_found_in_the_logs_of_its_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    jobs = [("b", "a"), ("c", "b"), ("d", "c")]
    path.write_bytes(
        b"".join(
            line
            for number, (job, by) in enumerate(jobs)
            for line in drained(job, by=by, after_ms=number * MINUTE_MS)
        )
    )
    assert main(["policy", "cascades", "--file", str(path)]) == 1
    assert "a evicts b evicts c evicts d" in capsys.readouterr().out
    assert main(["policy", "cascades", "--file", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["victim"] for one in found["evictions"]] == ["b", "c", "d"]
    assert found["times"]["b"]["training_ms"] == 60_000
    assert main(["policy", "cascades", "--file", str(path), "--metrics"]) == 1
    assert 'drainfsm_policy_training_seconds{job="b"} 60\n' in capsys.readouterr().out
    store = new_store(tmp_path / "decisions")
    for _ in range(2):
        recorded = ["--file", str(path), "--record", "--store", store.url]
        assert main(["policy", "cascades", *recorded]) == 1
    (kept,) = read_decisions(store)
    assert isinstance(kept, CascadeDetected)
    assert [one.victim for one in kept.chain] == ["b", "c", "d"]
    rules = tmp_path / "rules.toml"
    rules.write_text("[cascade]\nhops = 4\nthrash_max = 100\n")
    assert main(["policy", "cascades", "--file", str(path), "--rules", str(rules)]) == 0


def test_the_name_of_a_job_makes_no_metric_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    name = 'a"} 1\nevil{x="\\'
    path.write_bytes(b"".join(drained(name, by="b", after_ms=0)))
    main(["policy", "cascades", "--file", str(path), "--metrics"])
    told = capsys.readouterr().out
    (family,) = (
        one for one in text_string_to_metric_families(told) if one.name.endswith("training_seconds")
    )
    assert [one.labels for one in family.samples] == [{"job": name}]


def test_who_evicts_counts_where_it_was_found_out_behind_the_notice() -> None:
    """Kubernetes names the job in a notice of its own, which is only recorded."""
    scenario = Scenario(job_id="b")
    named = replace(scenario.notice().notice, native_id="preemptor", advisory=True, evicted_by="a")
    scenario.given(scenario.notice(), i.ReceiveNotice(notice=named))
    (found,) = evictions_in(scenario.history)
    assert (found.by, found.victim) == ("a", "b")


def test_an_eviction_that_is_told_again_is_one() -> None:
    scenario = Scenario(job_id="b")
    for in_ms in (60_000, 50_000):
        told = replace(scenario.notice(in_ms=in_ms).notice, evicted_by="a")
        assert scenario.when(i.ReceiveNotice(notice=told))
    assert len(list(evictions_in(scenario.history))) == 1


# --- the command --------------------------------------------------------------------------------


def test_rules_are_read_strictly() -> None:
    rules = read_rules(
        '[preemption]\nminimum_run_s = 60\ntiers = [{name = "a"}, {name = "b", preempts = []}]\n'
        "[restart]\njitter = 0.25\n",
        where="x.toml",
    )
    assert rules.preemption.victims_of("a") == ("b",)
    assert rules.preemption.victims_of("b") == ()
    assert slurm_settings(rules.preemption)[0] == "PreemptExemptTime=00:01:00"
    for text, told in (
        ("[restart]\njitter = 0.75", "0.5"),
        ("[restart]\npauses = 1", "pauses"),
        ('[preemption]\ntiers = [{name = "a", preempts = ["b"]}]', "b, which is not a tier"),
        ('[preemption]\ntiers = [{name = "a"}, {name = "a"}]', "a name of its own"),
        ("[preemption", "x.toml"),
        ('[preemption]\ntiers = [{name = ""}]', "tier ''"),
        ('[preemption]\ntiers = [{name = "a; rm -rf /"}]', "use 1 to 64 letters"),
        ('[preemption]\ntiers = [{name = "a\\u001b[2J"}]', "use 1 to 64 letters"),
        ('[preemption]\ntiers = [{name = "a", preempts = ["a"]}]', "a preempts a:"),
        (
            '[preemption]\ntiers = [{name = "a"}, {name = "b"}, {name = "c", preempts = ["a"]}]',
            "a preempts c preempts a:",
        ),
        ("[restart]\npause_s = 9\npause_s_max = 8", "9 is more than pause_s_max 8"),
    ):
        with pytest.raises(ConfigError, match=told):
            read_rules(text, where="x.toml")
    with pytest.raises(ConfigError, match="no tier is called 'c'"):
        PreemptionRules(tiers=(Tier(name="a"),)).tier("c")


def test_many_tiers_are_no_circle() -> None:
    names = ", ".join(f'{{name = "t{number}"}}' for number in range(60))
    assert len(read_rules(f"[preemption]\ntiers = [{names}]", where="x").preemption.tiers) == 60


@pytest.mark.parametrize(
    ("waiting", "jobs", "said"),
    [
        (Waiting(job_id="w", tier="nope"), [], "no tier is called 'nope'"),
        (Waiting(job_id="w", tier="batch", capacity=0), [], "w wants a capacity of 0"),
        (Waiting(job_id="w", tier="batch", capacity=-5), [], "w wants a capacity of -5"),
        (
            Waiting(job_id="w", tier="production"),
            [running("b", "batch", capacity=-9), running("c", "batch")],
            "b holds a capacity of -9",
        ),
        (
            Waiting(job_id="w", tier="production"),
            [running("b", "batch"), running("b", "training")],
            "b is listed twice",
        ),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    waiting: Waiting, jobs: list[Running], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        decide_preemption(waiting, jobs, RULES, free_capacity=0, now_unix_ms=NOW)


def test_a_job_does_not_evict_itself() -> None:
    assert victims(Waiting(job_id="a", tier="production"), running("a", "batch")) == ()


def test_a_clock_that_was_set_back_protects_nobody_for_longer() -> None:
    waiting = Waiting(job_id="w", tier="production")
    ahead = running("b", "batch", minutes=-60 * 24 * 365)
    decision = decide_preemption(waiting, [ahead], RULES, free_capacity=0, now_unix_ms=NOW)
    assert decision.spared[0].reason == "30.0 min of its minimum run time left"
    year_ms = 365 * 86_400_000
    often = running("b", "batch", evicted_unix_ms=[NOW + year_ms + n for n in range(4)])
    assert victims(waiting, often) == ("b",)
    just = running("b", "batch", evicted_unix_ms=[NOW + n for n in range(4)])
    assert victims(waiting, just) == ()


def test_names_from_elsewhere_are_no_escape_codes() -> None:
    evil = "<b>\x1b[2J"
    waiting, rules = Waiting(job_id=evil, tier=evil), PreemptionRules(tiers=(Tier(name=evil),))
    jobs = [running("b", evil)]
    for free in (0, 1):
        decision = decide_preemption(waiting, jobs, rules, free_capacity=free, now_unix_ms=NOW)
        assert "\x1b" not in "".join(explain_decision(decision))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rules", "--rules", "bytes.toml"], "bytes.toml: 'utf-8' codec"),
        (["restart", "--job", "j", "--store", "s", "--release"], "--release goes with --slurm"),
        (["restart", "--job", "j", "--store", "s", "--tier", "a"], "--tier goes with --annot"),
        (["restart", "--job", "j", "--store", "s", "--attempts", "-3"], "attempts: -3"),
        (["preempt", "--input", "asked.json", "--record"], "--store is missing"),
    ],
)
def test_a_wrong_call_decides_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAINFSM_STORE", raising=False)
    Path("bytes.toml").write_bytes(b"\xff")
    Path("asked.json").write_text('{"waiting": {"job_id": "w", "tier": "batch"}, "running": []}')
    assert main(["policy", *arguments]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""


def test_anybodys_scheduler_can_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {
        "waiting": {"job_id": "w", "tier": "production"},
        "running": [{"job_id": "b", "tier": "batch", "started_unix_ms": 0}],
        "now_unix_ms": NOW,
    }
    for body, code in ((asked, 0), ({**asked, "now_unix_ms": 1}, 1), ({**asked, "x": 1}, 2)):
        stdin = io.TextIOWrapper(io.BytesIO(json.dumps(body).encode()))
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["policy", "preempt", "--json"]) == code
    stdin = io.TextIOWrapper(io.BytesIO(json.dumps(asked).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["policy", "preempt", "--record", "--store", str(new_store(tmp_path).url)]) == 0
    (kept,) = read_decisions(new_store(tmp_path))
    assert isinstance(kept, PreemptionDecided)
    for wrong in (["rules", "--record"], ["preempt", "--slurm", "1"], ["restart", "--metrics"]):
        assert main(["policy", *wrong]) == 2
    answer = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (answer["kind"], answer["victims"]) == ("preemption_decided", ["b"])


def restart(store: ObjectStore, *more: str) -> int:
    return main(["policy", "restart", "--job", "j", "--store", store.url, *more])


def test_the_store_tells_when_the_job_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = new_store(tmp_path)
    assert restart(store) == 2
    assert "nothing to decide" in capsys.readouterr().err
    for epoch in range(1, 6):
        leave(store, epoch=epoch, cause=Cause.SPOT_INTERRUPTION, commits=True)
    assert restart(store, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["row"] == {"preemption_count": 5, "failure_count": 0}
    assert told["attempt"]["lived_ms"] == MINUTE_MS
    assert 2_000 <= told["pause_ms"] <= 4_000
    assert restart(store, "--annotations", "--tier", "training") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["drainfsm.io/restart"] == "restart"
    assert shown["drainfsm.io/preempts"] == "batch"
    assert "drainfsm.io/protected-until" not in shown
    for epoch in range(6, 11):
        leave(store, epoch=epoch, cause=Cause.EVICTION, commits=False)
    assert restart(store, "--record") == 1
    assert "no progress beyond the checkpoint" in capsys.readouterr().out
    assert restart(store, "--attempts", "0") == 0
    CommitLog(store, job_id="j").claim(attempt_id="a11", now_unix_ms=NOW + 200 * MINUTE_MS)
    assert restart(store, "--annotations") == 1
    assert "drainfsm.io/protected-until" in json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_finished_job_is_not_started(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    leave(store, epoch=1, cause=Cause.LOST, commits=False)
    leave(store, epoch=2, cause=Cause.FINISHED, commits=True)
    assert restart(store) == 0


def test_explain_shows_decisions_behind_the_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAINFSM_STATE_DIR", str(tmp_path / "state"))
    path, store = tmp_path / "log.jsonl", new_store(tmp_path / "store")
    path.write_bytes(b"".join(drained("j", by="a")))
    leave(store, epoch=1, cause=Cause.EVICTION, commits=True)
    assert restart(store, "--record") == 0
    capsys.readouterr()
    assert main(["explain", "--job", "j", "--file", str(path), "--store", store.url]) == 0
    told = capsys.readouterr().out
    assert told.index("Drain ") < told.index("Decided ") < told.index("preemption 1 in a row")


def test_what_a_supervisor_decided_is_found_beside_its_journals(tmp_path: Path) -> None:
    store = decisions_in(tmp_path / "state", job="j")
    store.create(parents=True)
    attempt = PastAttempt(epoch=1, ended=Ended.LOST, lived_ms=1)
    decision = decide_restart(Row(), attempt, RestartRules(), job_id="j", chance=0, now_unix_ms=1)
    assert record_decision(store, decision).startswith("decisions/0000000000001-")


def test_a_thrashing_cluster_settles_under_the_policy() -> None:
    before, after = run(0, policy=False), run(0, policy=True)
    assert before.finished
    assert after.finished
    assert after.productive > before.productive + 0.1
    assert after.cascades == 0 < before.cascades
    assert after.settled_min < before.settled_min
    assert after.evictions_max <= 4 < before.evictions_max
