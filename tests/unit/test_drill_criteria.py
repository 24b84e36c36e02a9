"""What is judged from a log and a store, and how verdicts are shown."""

from __future__ import annotations

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
from drainfsm.drills.run import Judged, Moment
from drainfsm.drills.scenarios import SCENARIOS
from drainfsm.machine import CordonOutcome, ReportCordon
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


def test_a_wrong_call_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "maintenance").mkdir()
    assert main(["drill", "maintenance", "--dir", str(tmp_path), "--", "true"]) == 2
    assert "holds an earlier drill" in capsys.readouterr().err
    assert main(["drill", "flood", "--", "true"]) == 2
