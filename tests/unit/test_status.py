"""Where a job stands, and what it would do with a notice now."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core import events as e
from drainfsm.core.budget import Sample
from drainfsm.core.codec import encode_lines
from drainfsm.core.decider import decide
from drainfsm.core.events import SaveSkipped
from drainfsm.log.journal import Journal, journal_path
from drainfsm.runtime.paths import RunInfo, write_run_info
from drainfsm.testing.scenario import Scenario
from drainfsm.views.history import by_attempt
from drainfsm.views.sources import BlindSource
from drainfsm.views.status import Status, status, status_text

WINDOWS_MS = (5_000, 30_000, 120_000)


def of(scenario: Scenario, *windows_ms: int) -> Status:
    logs = by_attempt(scenario.history)
    return status(logs, now_unix_ms=scenario.now_unix_ms, windows_ms=windows_ms)


def committed(scenario: Scenario, *, step: int, durable_ms: int = 400) -> e.CheckpointCommitted:
    load = scenario.state.attempt.load
    sample = Sample(
        world_size=load.world_size,
        save_bytes=load.save_bytes,
        store=load.store,
        durable_ms=durable_ms,
        commit_ms=100,
    )
    return e.CheckpointCommitted(
        generation_id=f"e000001-s{step:012d}-p",
        manifest_digest="sha256:00",
        slot=step,
        step=step,
        sample=sample,
    )


@pytest.mark.parametrize("durable_ms", [100, 20_000, 90_000])
@pytest.mark.parametrize("window_ms", WINDOWS_MS)
def test_the_forecast_is_what_a_drain_decides(window_ms: int, durable_ms: int) -> None:
    scenario = Scenario()
    scenario.wait(1_000).when(committed(scenario, step=40, durable_ms=durable_ms))
    (forecast,) = of(scenario, window_ms).answers
    notice = scenario.notice(in_ms=window_ms, clock_skew_ms=0)
    scenario.when(notice)
    scenario.wait(scenario.state.attempt.allowances.handler_ms)
    events = decide(scenario.state, scenario.cordoned(), now_unix_ms=scenario.now_unix_ms)
    skipped = [event for event in events if isinstance(event, SaveSkipped)]
    assert bool(skipped) == bool(forecast.reason)
    if skipped:
        assert forecast.reason == skipped[0].reason


def test_the_age_of_the_last_commit() -> None:
    scenario = Scenario()
    scenario.when(committed(scenario, step=40))
    scenario.wait(7_000)
    found = of(scenario)
    assert (found.committed_step, found.commit_age_ms) == (40, 7_000)
    assert "last commit: step 40, 7.0 s ago" in "\n".join(status_text(found))


def test_a_job_that_has_committed_nothing_says_what_that_means() -> None:
    text = "\n".join(status_text(of(Scenario(), 120_000)))
    assert "nothing is committed yet" in text
    assert "no save is on record yet" in text


def test_a_drain_shows_its_countdown() -> None:
    scenario = Scenario()
    scenario.when(scenario.notice(in_ms=60_000))
    scenario.wait(10_000)
    found = of(scenario, *WINDOWS_MS)
    assert found.remaining_ms == 50_000
    assert found.answers == (), "it saves once: another notice can only shorten it"
    assert f"drain {found.drain_id} is noticed, 50.0 s to its deadline" in next(status_text(found))


def test_a_source_that_cannot_tell_is_named_and_escaped() -> None:
    scenario = Scenario()
    report = e.SourceUnknown(
        source="aws", node=1, since_unix_ms=scenario.now_unix_ms, detail="\x1b[2Jtimed out"
    )
    scenario.when(report)
    text = "\n".join(status_text(of(scenario)))
    assert "source aws on node 1 cannot tell" in text
    assert "\x1b" not in text


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = Scenario()
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(scenario.history))
    job = scenario.state.attempt.job_id
    file = ["--file", str(path)]
    assert main(["status", "--job", job, *file, "--notice", "0.5"]) == 1
    assert "a notice of 0.5 s would be skipped, because remaining" in capsys.readouterr().out
    assert main(["status", *file, "--notice", "600", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["answers"][0]["budget"]["fits"] is True
    assert main(["status", *file, "--notice", "-1"]) == 2


def test_where_the_log_is_and_that_an_embedded_server_ends_with_its_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(
        Journal.open(journal_path(tmp_path, job_id="job", epoch=1), job_id="job", epoch=1)
    ) as journal:
        journal.append(*Scenario().history)
    info = RunInfo(
        job_id="job",
        epoch=1,
        pid=1,
        nats_url="nats://secret@127.0.0.1:4222",
        coordinator="",
        websocket_url="ws://secret@127.0.0.1:8222",
        stream="DRAINFSM",
        subjects="drainfsm.v1.job.*",
        ends_with_attempt=True,
    )
    argv = ["status", "--job", "job", "--state-dir", str(tmp_path)]
    write_run_info(tmp_path, info)
    main(argv)
    told = capsys.readouterr().out
    assert "nats://127.0.0.1:4222: DRAINFSM, subjects drainfsm.v1.job.*" in told
    assert "ws://127.0.0.1:8222" in told
    assert "secret" not in told
    assert "ends with its attempt" in told
    write_run_info(tmp_path, replace(info, websocket_url="", ends_with_attempt=False))
    main(argv)
    told = capsys.readouterr().out
    assert "ends with" not in told
    assert "browsers" not in told


def test_without_a_job_it_is_the_only_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAINFSM_JOB", raising=False)
    state = tmp_path / "state"
    argv = ["status", "--state-dir", str(state), "--notice", "600"]
    assert main(argv) == 2
    assert "--job is missing" in capsys.readouterr().err
    path = journal_path(state, job_id="job", epoch=1)
    with contextlib.closing(Journal.open(path, job_id="job", epoch=1)) as journal:
        journal.append(*Scenario().history)
    assert main(argv) == 0
    journal_path(state, job_id="other", epoch=1).parent.mkdir(parents=True)
    assert main(argv) == 2
    said = capsys.readouterr()
    assert "job job, attempt 1: running" in said.out
    assert "a notice of 10.0 min would be saved, because it leaves" in said.out
    assert "which job? give --job; there are job, other" in said.err


def test_steps_as_long_as_at_the_last_notice_count() -> None:
    """Two steps of 40 s leave no room in a window that would do for short ones."""
    before, now = Scenario(epoch=1), Scenario(epoch=2)
    before.when(replace(before.notice(in_ms=600_000, hard=False), step_ms=40_000))
    now.wait(1_000).when(committed(now, step=40))
    assert of(now, 60_000).answers[0].reason == ""
    logs = by_attempt([*before.history, *now.history])
    found = status(logs, now_unix_ms=now.now_unix_ms, windows_ms=[60_000])
    assert found.step_ms == 40_000
    assert found.answers[0].reason != ""
    assert "steps took up to 40.0 s" in "\n".join(status_text(found))


def test_a_clock_that_is_ahead_is_told() -> None:
    scenario = Scenario()
    for apart_ms, told in ((4_000, False), (120_000, True)):
        found = status(by_attempt(scenario.history), now_unix_ms=scenario.now_unix_ms - apart_ms)
        text = "\n".join(status_text(found))
        assert "last record 0.0 s ago" in text
        assert ("its clock is" in text) is told
    assert "its clock is 2.0 min ahead" in text


def test_a_hundred_blind_sources_are_counted() -> None:
    blind = [
        BlindSource(source=f"source-{number}", node=0, since_unix_ms=0, detail="away")
        for number in range(100)
    ]
    found = replace(of(Scenario()), blind=tuple(blind))
    lines = list(status_text(found))
    assert sum("cannot tell: away" in line for line in lines) == 10
    assert "  and 90 more sources that cannot tell" in lines
