"""What is judged from a log and a store, and how verdicts are shown."""

from __future__ import annotations

import errno
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from drainfsm.cli.main import main
from drainfsm.core.budget import Allowances
from drainfsm.core.notice import Cause
from drainfsm.core.rules import events_of
from drainfsm.drills.criteria import (
    CRITERIA,
    all_complete,
    cordoned_first,
    decision_count,
    decision_of,
    left_over,
)
from drainfsm.drills.job import DrillJob, DrillSettings
from drainfsm.drills.render import html_page, junit_xml, table_text
from drainfsm.drills.run import Judged, Moment, play
from drainfsm.drills.scenarios import SCENARIOS
from drainfsm.errors import StoreUnreachableError
from drainfsm.machine import CordonOutcome, ReportCordon
from drainfsm.store import open_store
from drainfsm.store.rehearsals import DrainRehearsed, read_rehearsals
from drainfsm.testing.scenario import Scenario
from drainfsm.testing.stores import new_store
from drainfsm_kit.past import leave


def judged(**fields: Any) -> Judged:
    right: dict[str, Any] = {
        "scenario": "stuck-rank",
        "title": "a <rank> & its collective",
        "decision": "skipped",
        "struck": True,
        "criteria": dict.fromkeys(CRITERIA, True),
        "window_ms": 30_000,
        "took_ms": 10_000,
        "resumed_step": 5,
        "left_over": (),
        "rules_broken": (),
        "note": "",
        "problem": "",
        "duration_s": 12.5,
        "timeline": (Moment(at_unix_ms=1, epoch=1, kind="attempt_started"),),
    }
    return Judged(**{**right, **fields})


FAILED: dict[str, dict[str, Any]] = {
    "criterion": {"criteria": {**dict.fromkeys(CRITERIA, True), "one_save_decision": False}},
    "rule": {"rules_broken": ("I3 broken",)},
    "problem": {"problem": "no HealthyStepReached"},
}


@pytest.mark.parametrize("what", FAILED)
def test_whatever_is_wrong_fails_everywhere(what: str) -> None:
    one = judged(**FAILED[what])
    assert not one.passed
    assert "1 of 2 passed" in "\n".join(table_text([judged(), one]))
    suite = ET.fromstring(junit_xml([judged(), one]))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert suite.findall("testcase/failure")[0].get("message")
    assert '<td class="FAIL">FAIL' in html_page([one])


def test_what_does_not_apply_fails_nothing_and_titles_are_escaped() -> None:
    one = judged(criteria={**dict.fromkeys(CRITERIA, True), "exit_inside_the_budget": None})
    assert one.passed
    assert '"FAIL">' not in html_page([one])
    assert "a &lt;rank&gt; &amp; its collective" in html_page([one])


def test_decisions_are_read_off_the_log() -> None:
    scenario = Scenario()
    scenario.when(scenario.notice(in_ms=60_000))
    assert decision_of(list(events_of(scenario.history))).what == "none"
    scenario.when(scenario.cordoned())
    events = list(events_of(scenario.history))
    assert cordoned_first(events)
    assert decision_count(events) == 0
    scenario.given(scenario.positions(), *scenario.all_quiesced())
    assert decision_count(events_of(scenario.history)) == 1
    short = Scenario()
    short.when(short.notice(in_ms=6_000))
    short.when(ReportCordon(outcome=CordonOutcome.FAILED, duration_ms=1))
    events = list(events_of(short.history))
    assert not cordoned_first(events)
    assert (decision_of(events).what, decision_count(events)) == ("skipped", 1)


def test_a_committed_generation_without_its_files_is_not_complete(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    assert not all_complete(store, job_id="j")
    leave(store, epoch=1, cause=Cause.EVICTION, commits=True)
    assert not all_complete(store, job_id="j")
    assert not all_complete(store, job_id="another"), "no answer is no whole checkpoint"
    store.put("generations/e000002-s000000000009-d1/rank0", b"x")
    assert left_over(store, job_id="j") == ("e000002-s000000000009-d1",)


def test_scenarios_that_share_a_server_of_the_log_are_jobs_of_their_own(tmp_path: Path) -> None:
    """Else the second one's log would be refused for the first one's."""
    settings = DrillSettings(
        command=("true",), grace_s=30, every_steps=5, allowances=Allowances(), nats_url="",
        timeout_s=1,
    )  # fmt: skip
    names = {DrillJob(tmp_path / scenario, settings).job for scenario in SCENARIOS}
    assert len(names) == len(SCENARIOS)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--grace", "nan"), "grace: nan s"),
        (("--every-steps", "-4"), "every_steps: -4"),
        (("--exit-margin-ms", "-1"), "exit_margin_ms: -1"),
        (("--timeout", "inf"), "inf is not more than 0"),
        (("--html", "no/such/page.html"), "no/such/page.html cannot be written"),
        (("--junit", "."), ". cannot be written"),
        (("--dir", "a\x1b[31m"), "printable"),
        (("--dir", "\udcff"), "printable"),
        (("--store", "full/full-store", "--job", "llm"), "full does not exist"),
    ],
)
def test_a_wrong_call_is_one_line_and_starts_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").write_text("")
    assert main(["drill", "maintenance", *wrong, "--", "true"]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "drilling" not in told
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_of_two_drills_in_one_directory_one_is_refused_and_leaves_the_other_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow-store").mkdir()
    assert main(["drill", "all", "--dir", str(tmp_path), "--", "true"]) == 2
    assert "holds another drill of slow-store" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["slow-store"]
    assert main(["drill", "flood", "--", "true"]) == 2


# --- what was found is told ---------------------------------------------------------------------


def drilled(monkeypatch: pytest.MonkeyPatch, ends: dict[int, BaseException], *more: str) -> int:
    """All scenarios, found to pass; ``ends``: what their play raises, by number."""
    played: list[str] = []

    def play(name: str, root: Path, settings: DrillSettings) -> Judged:
        played.append(name)
        if len(played) in ends:
            raise ends[len(played)]
        return judged(scenario=name)

    monkeypatch.setattr("drainfsm.cli.drill_scenarios.play", play)
    return main(["drill", "all", *more, "--", "true"])


def test_verdicts_before_an_interruption_are_told_and_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, pages = str(tmp_path / "store"), ("--junit", str(tmp_path / "d.xml"))
    own = ("--dir", str(tmp_path / "drill"), "--store", store, "--job", "llm", *pages)
    assert drilled(monkeypatch, {3: KeyboardInterrupt()}, *own) == 130
    assert "2 of 2 passed" in capsys.readouterr().out
    told = read_rehearsals(open_store(store), job_id="llm")
    assert {one.scenario for one in told} == set(list(SCENARIOS)[:2])
    assert not (tmp_path / "d.xml").exists(), "two of thirteen are no green suite"


def test_a_verdict_that_cannot_be_recorded_stops_no_drill_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(store: object, rehearsed: DrainRehearsed) -> str:
        raise StoreUnreachableError("the store is away")

    monkeypatch.setattr("drainfsm.cli.drill_scenarios.record_rehearsal", away)
    own = ("--dir", str(tmp_path / "drill"), "--store", str(tmp_path / "store"), "--job", "llm")
    assert drilled(monkeypatch, {}, *own) == 1
    told = capsys.readouterr()
    assert f"{len(SCENARIOS)} of {len(SCENARIOS)} passed" in told.out
    assert "not on record: the store is away" in told.err


def test_a_scenario_that_meets_a_full_disk_is_a_verdict_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(job: DrillJob, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DrillJob, "start", full)
    settings = DrillSettings(
        command=("true",), grace_s=30, every_steps=5, allowances=Allowances(), nats_url="",
        timeout_s=1,
    )  # fmt: skip
    found = play("maintenance", tmp_path / "maintenance", settings)
    assert not found.passed
    assert "No space left" in found.problem
