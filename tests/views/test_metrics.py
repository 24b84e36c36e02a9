"""``GET /metrics``: the same numbers as the report's, few series, names that Prometheus likes."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from drainfsm.core import events as e
from drainfsm.core.notice import Cause
from drainfsm.core.records import Record
from drainfsm.log.journal import Journal, journal_path
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.paths import RunInfo, read_run_info, write_run_info
from drainfsm.testing.scenario import Scenario
from drainfsm.views.agent_metrics import AgentMetrics
from drainfsm.views.history import read_file
from drainfsm.views.measures import SOURCES_MAX, Measures
from drainfsm.views.metrics import Collected, LogCollector, registry
from drainfsm.views.projections import Projection
from drainfsm.views.report import report_jobs

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
HISTORIES = sorted((ROOT / "tests" / "replay" / "histories").glob("*.jsonl"))
WAIT_S = 120.0
HOSTILE = 'llm"} 1\n# TYPE forged counter\nforged 1'
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def exposed(records: Iterable[Record], *, now_unix_ms: int = 0) -> str:
    projection = Projection()
    for record in records:
        projection.read(record)
    made = registry(lambda: projection, clock=lambda: now_unix_ms)
    return generate_latest(made).decode()


def samples(text: str) -> Samples:
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((f"drainfsm_{name}", frozenset({"job_id": "job", **labels}.items())))


def committed() -> Scenario:
    scenario = Scenario().saving(in_ms=60_000)
    return scenario.given(
        scenario.staged(), scenario.durable(), scenario.verified(), scenario.published()
    )


def test_an_open_drain_has_its_countdown_and_the_rule() -> None:
    scenario = Scenario()
    scenario.given(scenario.notice(in_ms=60_000), scenario.cordoned())
    found = samples(exposed(scenario.history, now_unix_ms=scenario.now_unix_ms + 10_000))
    assert value(found, "drain_remaining_seconds") == 50.0
    assert value(found, "drain_save_fits") == 1.0
    assert value(found, "drain_committed") == 0.0
    assert value(found, "drain_phase", phase="noticed") == 1.0
    assert value(found, "attempt_running") == 1.0
    assert value(found, "commit_age_seconds") is None
    notice = {"notice_class": "hard", "cause": "spot_interruption"}
    assert value(found, "notices_total", **notice) == 1.0


def test_a_commit_has_an_age_and_its_phases_are_measured() -> None:
    scenario = committed()
    found = samples(exposed(scenario.history, now_unix_ms=scenario.now_unix_ms + 30_000))
    assert value(found, "commit_age_seconds") == 30.0
    assert value(found, "drain_committed") == 1.0
    assert value(found, "commits_total", kind="drain") == 1.0
    assert value(found, "commits_total", kind="periodic") == 0.0
    for phase in ("cordon", "quiesce", "stage", "durable", "commit"):
        assert value(found, "drain_phase_duration_seconds_count", phase=phase) == 1.0, phase


def test_histograms_of_many_jobs_are_one() -> None:
    projection = Projection()
    for job_id in ("a", "b"):
        for record in committed().history:
            projection.read(replace(record, job_id=job_id))
    collector = LogCollector(lambda: projection, clock=lambda: 0, together=True)
    found = samples(generate_latest(Collected(collector.collect())).decode())
    durable = {"job_id": "", "phase": "durable"}
    assert value(found, "drain_phase_duration_seconds_count", **durable) == 2.0
    assert value(found, "drain_phase_duration_seconds_count", job_id="a", phase="durable") is None
    assert value(found, "commits_total", job_id="a", kind="drain") == 1.0


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_the_counters_are_what_the_report_says(path: Path) -> None:
    history = read_file(path)
    totals = report_jobs(history.logs).totals
    projection = Projection()
    for record in history.records:
        projection.read(record)
    (job,) = projection.jobs.values()
    measures = job.measures
    over = {name: n for name, n in totals.endings.items() if name != "open"}
    assert dict(measures.ended) == over
    drains: dict[str, int] = {}
    for (_, outcome), count in measures.drains.items():
        drains[outcome] = drains.get(outcome, 0) + count
    assert drains == {name: n for name, n in totals.drains.items() if name != "open"}
    assert measures.deadline_missed_count == totals.deadline_missed_count
    assert measures.restore_count == totals.restore.count
    assert measures.restore_refused_count == totals.restore_refused_count


def test_a_loss_that_two_attempts_write_down_counts_once() -> None:
    measures = Measures()
    for epoch in (1, 2):
        lost = e.AttemptLost(epoch=1, reason="a node was lost")
        measures.read(
            Record(id=f"{epoch}", job_id="j", epoch=epoch, follows=0, at_unix_ms=0, events=(lost,))
        )
    assert measures.ended == {"lost": 1}


def test_words_of_sources_share_a_label() -> None:
    scenario = Scenario()
    given = scenario.notice(in_ms=60_000)
    scenario.when(replace(given, notice=replace(given.notice, cause=Cause(HOSTILE))))
    text = exposed(scenario.history)
    assert 'cause="other"' in text
    assert "forged" not in text


def test_a_log_cannot_make_series_without_end() -> None:
    measures = Measures()
    for number in range(3 * SOURCES_MAX):
        event = e.SourceUnknown(source=f"s{number}", node=0, since_unix_ms=0, detail="")
        measures.read(
            Record(
                id=f"{number}", job_id="j", epoch=1, follows=number, at_unix_ms=0, events=(event,)
            )
        )
    assert len(measures.source_unknown) == SOURCES_MAX + 1
    assert measures.source_unknown["other"] == 2 * SOURCES_MAX
    assert measures.blind(1)["other"] == 2 * SOURCES_MAX


def test_names_of_jobs_are_no_lines() -> None:
    families = text_string_to_metric_families(exposed(Scenario(job_id=HOSTILE).history))
    assert not [family for family in families if family.name.startswith("forged")]


@pytest.mark.promtool
def test_promtool_finds_nothing_to_say() -> None:
    records = [record for path in HISTORIES for record in read_file(path).records]
    text = exposed([*records, *committed().history])
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.promtool
def test_the_alerts_fire_when_they_should() -> None:
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=GRAFANA, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promtool
def test_the_expressions_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:expression:{number}", "expr": expression}
        for number, expression in enumerate(dashboard_expressions())
    ]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def dashboard_expressions() -> list[str]:
    dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_dashboard_and_alerts_name_only_what_is_exported() -> None:
    text = exposed(committed().history)
    known = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    used = set(re.findall(r"drainfsm_\w+", " ".join(dashboard_expressions())))
    used |= set(re.findall(r"\bdrainfsm_\w+", (GRAFANA / "alerts.yml").read_text()))
    assert len(used) > 15
    assert {name.removesuffix("_bucket") for name in used} <= known


def test_an_agent_answers_scrapes_while_its_job_runs(tmp_path: Path) -> None:
    """Also where its address is taken at first."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = subprocess.Popen(
            [
                *(sys.executable, "-m", "drainfsm", "run", "--job", "m", "--metrics"),
                *(f"127.0.0.1:{port}", "--store", str(tmp_path / "store"), "--state-dir"),
                *(str(tmp_path / "state"), "--nats", "nats://127.0.0.1:9", "--grace", "8"),
                *("--", sys.executable, "-c", "import time; time.sleep(600)"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert agent.stderr is not None
        assert f"no metrics at 127.0.0.1:{port} yet" in next(iter(agent.stderr))
    try:
        give_up = time.monotonic() + WAIT_S
        text = ""
        while 'drainfsm_attempt_epoch{job_id="m"} 1.0' not in text:
            assert time.monotonic() < give_up
            assert agent.poll() is None
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    text = answer.read().decode()
            except OSError:
                time.sleep(0.1)
        agent.terminate()
        assert agent.wait(WAIT_S) == 75
    finally:
        agent.kill()
        agent.wait()
        agent.stderr.close()
    info = read_run_info(tmp_path / "state", "m")
    assert info is not None
    assert info.pid == agent.pid
    assert journal_path(tmp_path / "state", job_id="m", epoch=1).exists()


def test_a_journal_of_another_attempt_is_not_shown(tmp_path: Path) -> None:
    config = RunConfig(job="job", store="s", command=("x",), state_dir=tmp_path, metrics="h:1")
    journal = Journal.open(journal_path(tmp_path, job_id="job", epoch=1), job_id="job", epoch=1)
    journal.append(*Scenario().history)
    journal.close()
    info = RunInfo(job_id="job", epoch=1, pid=os.getpid() + 1, nats_url="", coordinator="")
    write_run_info(tmp_path, info)
    assert AgentMetrics(config).projection().jobs == {}
    write_run_info(tmp_path, replace(info, pid=os.getpid()))
    assert AgentMetrics(config).projection().jobs.keys() == {"job"}
