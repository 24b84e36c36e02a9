"""The live view: what it folds, what it shows in a size, and that nothing in a log ends it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core import inputs as i
from drainfsm.core.codec import encode_lines
from drainfsm.core.events import MissingRank
from drainfsm.log.journal import Journal, journal_path
from drainfsm.testing.scenario import Scenario
from drainfsm.views.projections import Projection
from drainfsm.views.screen import FILTERS, Feed, Selection, plain, screen
from drainfsm.views.watch import Reader

FEED = Feed(source="a file")
HOSTILE = "\x1b[2J\x1b]0;title\x07\nforged line"


def projected(*scenarios: Scenario) -> Projection:
    projection = Projection()
    for scenario in scenarios:
        for record in scenario.history:
            assert projection.read(record)
    return projection


def shown(
    projection: Projection, now_unix_ms: int, *, width: int = 80, height: int = 24, job_id: str = ""
) -> str:
    lines = screen(
        projection,
        feed=FEED,
        selection=Selection(job_id=job_id),
        now_unix_ms=now_unix_ms,
        width=width,
        height=height,
    )
    assert len(lines) <= height
    assert max(line.cell_len for line in lines) <= width
    return plain(lines)


def draining(job_id: str = "job", *, in_ms: int = 60_000) -> Scenario:
    scenario = Scenario(job_id=job_id)
    return scenario.given(scenario.notice(in_ms=in_ms), scenario.cordoned())


def test_a_drain_shows_its_countdown_its_budget_and_its_ranks() -> None:
    scenario = draining()
    text = shown(projected(scenario), scenario.now_unix_ms + 10_000)
    assert "50.0 s to its deadline" in text
    assert "50.0 s left" in text
    assert "fits" in text
    assert "no stop step is agreed" in text
    scenario.when(scenario.positions())
    text = shown(projected(scenario), scenario.now_unix_ms)
    assert "0 of 4 ranks hold at step" in text
    scenario.when(scenario.quiesced(0))
    assert "waiting for node 1" in shown(projected(scenario), scenario.now_unix_ms)


def test_late_ranks_are_named() -> None:
    scenario = draining()
    scenario.now_unix_ms = scenario.state.current.deadline_unix_ms - 10_000
    missing = MissingRank(rank=3, node=1, last_step=40, phase=HOSTILE)
    scenario.when(i.Tick(missing=(missing,)))
    projection = projected(scenario)
    assert [one.rank for one in projection.jobs["job"].newest.late] == [3]
    text = shown(projection, scenario.now_unix_ms)
    assert "1 of 4 ranks late: rank 3 on node 1" in text
    assert "\x1b" not in text


def test_the_nearest_deadline_comes_first() -> None:
    soon = draining("soon", in_ms=30_000)
    projection = projected(Scenario(job_id="idle"), draining("later", in_ms=90_000), soon)
    assert [job.job_id for job in projection.by_urgency()] == ["soon", "later", "idle"]
    assert shown(projection, soon.now_unix_ms).splitlines()[1].startswith("> soon/1")
    assert "> later/1" in shown(projection, soon.now_unix_ms, job_id="later")


def test_the_chosen_job_stays_chosen_when_the_order_changes() -> None:
    early, late = draining("early", in_ms=30_000), draining("late", in_ms=60_000)
    projection = projected(early, late)
    assert "> late/1" in shown(projection, late.now_unix_ms, job_id="late")
    late.when(late.notice(in_ms=10_000, native_id="sooner"))
    assert projection.read(late.history[-1])
    text = shown(projection, late.now_unix_ms, job_id="late")
    assert text.splitlines()[1].startswith("> late/1")
    assert shown(projection, late.now_unix_ms, job_id="early").splitlines()[2].startswith("> early")


def test_drains_that_are_over_are_told_with_their_outcome() -> None:
    scenario = draining()
    scenario.now_unix_ms = scenario.state.current.deadline_unix_ms - 10_000
    scenario.when(i.Tick())
    scenario.when(i.ReportExited(exit_code=75, nodes=()))
    text = shown(projected(scenario), scenario.now_unix_ms)
    assert "drain job/1/1" in text
    assert "skipped, 10.0 s before" in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (20, 5), (1, 1)])
def test_it_fits_every_size(width: int, height: int) -> None:
    scenario = draining()
    shown(projected(scenario), scenario.now_unix_ms, width=width, height=height)


def test_a_thousand_jobs_fit_the_screen() -> None:
    projection = Projection()
    for number in range(1_000):
        for record in Scenario(job_id=f"job-{number}", form_world=False).history:
            projection.read(record)
    assert "> job-999/1" in shown(projection, 0, job_id="job-999")


def test_what_comes_twice_or_out_of_place_changes_nothing() -> None:
    scenario = draining()
    projection = projected(scenario)
    state = projection.jobs["job"].newest.state
    for record in scenario.history:
        assert not projection.read(record)
    assert not projection.read(replace(scenario.history[-1], id="forged", follows=99))
    assert projection.jobs["job"].newest.state == state
    assert "skipped" in shown(projection, scenario.now_unix_ms)


def test_messages_that_were_read_are_not_read_again() -> None:
    scenario = draining()
    projection = Projection()
    for sequence, record in enumerate(scenario.history, start=1):
        assert projection.read(record, sequence=sequence)
    assert projection.sequence == len(scenario.history)
    count = len(projection.jobs["job"].events)
    assert not projection.read(scenario.history[0], sequence=1)
    assert len(projection.jobs["job"].events) == count


def test_garbage_is_counted_and_said() -> None:
    projection = Projection()
    projection.read_garbage("message 7: no record", sequence=7)
    assert projection.sequence == 7
    assert "1 unreadable" in shown(projection, 0)


def test_a_stale_view_says_for_how_long() -> None:
    feed = Feed(source="nats://host", stale_since_unix_ms=1_000, error=HOSTILE)
    lines = screen(
        Projection(), feed=feed, selection=Selection(), now_unix_ms=31_000, width=200, height=9
    )
    assert "STALE for 30.0 s, since 00:00:01" in plain(lines)
    assert "\x1b" not in plain(lines)


def test_a_clock_that_is_ahead_is_told() -> None:
    scenario = draining()
    assert "its clock" not in shown(projected(scenario), scenario.now_unix_ms)
    text = shown(projected(scenario), scenario.now_unix_ms - 90_000, width=120)
    assert "its clock is 90.0 s ahead" in text


def test_filters_choose_events() -> None:
    scenario = draining()
    projection = projected(scenario)
    texts = {}
    for wanted in FILTERS:
        lines = screen(
            projection,
            feed=FEED,
            selection=Selection(filter=wanted),
            now_unix_ms=scenario.now_unix_ms,
            width=100,
            height=40,
        )
        texts[wanted] = plain(lines)
    assert "node_cordoned" in texts["all"]
    assert "node_cordoned" not in texts["decisions"]
    assert "notice_received" in texts["notices"]
    assert "attempt_started" not in texts["notices"]


def log(directory: Path) -> Path:
    path = directory / "log.jsonl"
    path.write_bytes(encode_lines(draining().history) + b"no record\n")
    return path


def test_once_for_people_and_for_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = log(tmp_path)
    assert main(["watch", "--file", str(path), "--once"]) == 0
    printed = capsys.readouterr().out
    assert "1 unreadable" in printed
    assert "deadline" in printed
    assert main(["watch", "--file", str(path), "--once", "--json"]) == 0
    (status,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status["phase"] == "noticed"
    assert main(["watch", "--file", str(tmp_path / "none"), "--once"]) == 2
    assert main(["watch", "--once"]) == 2


def test_devices_are_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for argv in (["watch", "--once"], ["explain"], ["report", "--all"], ["verify"]):
        assert main([*argv, "--file", "/dev/zero"]) == 2, argv
        assert "/dev/zero: it is a device" in capsys.readouterr().err


READ_ONCE = (["watch", "--once"], ["explain"], ["report", "--all"], ["verify"], ["replay"])


@pytest.mark.parametrize("argv", READ_ONCE)
def test_a_pipe_is_read_once(argv: list[str], tmp_path: Path) -> None:
    """As of ``--file <(zcat log.jsonl.gz)``."""
    path, pipe = log(tmp_path), tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    for file in (pipe, path):
        process = subprocess.Popen(
            [sys.executable, "-m", "drainfsm", *argv, "--file", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if file is pipe:
            pipe.write_bytes(path.read_bytes())
        printed = process.communicate(timeout=60)[0]
        if argv[0] == "watch":  # names its source, and the time
            printed = printed.split("\n", 1)[1].split(" to its deadline")[0]
        found.append((process.returncode, printed))
    assert found[0] == found[1]
    assert found[0][1]


@pytest.mark.parametrize("argv", [["explain"], ["replay"], ["report"], ["report", "--all"]])
def test_what_is_wrong_with_the_output_is_not_said_of_the_file(
    argv: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(
        b"".join(encode_lines(Scenario(job_id=f"job-{number}").history) for number in range(3_000))
    )
    command = [sys.executable, "-m", "drainfsm", *argv, "--file", str(path)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "drainfsm: cannot write the output: No space left on device\n"
    if argv != ["report", "--all"]:  # its few lines fit into any pipe
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(60) == 141
            assert process.stderr.read() == b""


def test_a_pipe_cannot_be_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for argv in (["watch"], ["serve", "--listen", "127.0.0.1:0"]):
        assert main([*argv, "--file", str(pipe)]) == 2, argv
        assert "a pipe cannot be followed" in capsys.readouterr().err


@pytest.mark.parametrize("argv", READ_ONCE)
def test_what_is_packed_is_said_to_be(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(log(tmp_path).read_bytes()))
    assert main([*argv, "--file", str(path)]) == 2
    said = capsys.readouterr().err
    assert "compressed by gzip" in said
    assert "zcat" in said
    path.write_bytes(b"PAR1....")
    assert main([*argv, "--file", str(path)]) == 2
    assert "it is Parquet" in capsys.readouterr().err


def test_a_pipe_whose_reader_is_gone_ends_it_though_nothing_changes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "drainfsm", "watch", "--json", "--file", str(log(tmp_path))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert json.loads(process.stdout.readline())["job_id"] == "job"
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_keys_on_a_real_terminal(tmp_path: Path) -> None:
    main_end, other_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "drainfsm", "watch", "--file", str(log(tmp_path))],
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(other_end)
    try:
        _read_until(main_end, b"drainfsm watch")
        os.write(main_end, b"e")
        _read_until(main_end, b"Outcome")
        os.write(main_end, b"q\x1b[B\x1b[Aff")  # several at once, over a slow line
        _read_until(main_end, b"filter: notices")
        os.write(main_end, b"jq")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main_end)


def _read_until(number: int, wanted: bytes) -> None:
    found, give_up = b"", time.monotonic() + 60
    while wanted not in found:
        ready, _, _ = select.select([number], [], [], 1)
        if ready:
            found += os.read(number, 65_536)
        assert time.monotonic() < give_up, found[-2_000:]


def test_journals_that_grow_are_read_on_and_those_that_were_replaced_anew(tmp_path: Path) -> None:
    scenario = draining()
    path = journal_path(tmp_path, job_id="job", epoch=1)
    journal = Journal.open(path, job_id="job", epoch=1)
    reader = Reader(clock=lambda: scenario.now_unix_ms, job="job", state_dir=tmp_path)
    for record in scenario.history:
        journal.append(record)
        reader.poll()
        newest = reader.projection.jobs["job"].newest
        assert newest.records[-1] == record
    kept = reader.projection
    journal.close()
    path.unlink()
    with contextlib.closing(Journal.open(path, job_id="job", epoch=1)) as journal:
        journal.append(scenario.history[0])
    reader.poll()
    assert reader.projection is not kept
    assert reader.projection.jobs["job"].newest.records == scenario.history[:1]
    path.write_bytes(b"something else")
    reader.poll()
    assert reader.projection.unreadable_count == 1
    reader.poll()
    assert reader.projection.unreadable_count == 1


@pytest.mark.parametrize("argv", [["watch", "--once"], ["status"], ["replay"], ["explain"],
                                  ["report"], ["report", "--all"], ["policy", "cascades"],
                                  ["explain", "--markdown"], ["verify"]])  # fmt: skip
def test_the_name_of_a_job_is_no_escape_sequence(
    argv: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logs are written by whoever may write to the stream."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(draining("red\x1b[31m\u202eevil").history))
    main([*argv, "--file", str(path)])
    printed = capsys.readouterr()
    assert printed.out
    assert not {"\x1b", "\u202e"} & set(printed.out + printed.err)
