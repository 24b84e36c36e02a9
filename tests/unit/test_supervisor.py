"""Restarts, their limit and their pauses, signals and silence, with small real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainfsm.cli.main import main
from drainfsm.cli.restarting import Left, Restarts, left_by, past_attempt
from drainfsm.cli.stores import decisions_in
from drainfsm.core.inputs import ReportExited
from drainfsm.log.journal import Journal, journal_path
from drainfsm.policy.decisions import read_decisions
from drainfsm.policy.events import Ended, RestartAction, RestartDecided
from drainfsm.policy.rules import RestartRules
from drainfsm.runtime.liveness import Sign, ended_with, give_sign, sign_of_life
from drainfsm.runtime.paths import RunInfo, run_info_path, write_run_info
from drainfsm.runtime.supervisor import Supervisor
from drainfsm.testing.scenario import Scenario

SCRIPT = """
import os, pathlib, signal, sys, time
directory, *codes = sys.argv[1:]
directory = pathlib.Path(directory)
number = len(list(directory.glob("started-*")))
(directory / f"started-{number}").write_text(str(os.getpid()))
code = codes[min(number, len(codes) - 1)]
if code == "hang":
    signal.pause()
if code == "drain":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    (directory / "ready").touch()
    signal.pause()
if int(code) < 0:
    os.kill(os.getpid(), -int(code))
sys.exit(int(code))
"""
QUICK = RestartRules(pause_s=0.01, pause_s_max=0.05, failures_max=5)


class Watched:
    def __init__(
        self,
        directory: Path,
        *codes: object,
        rules: RestartRules = QUICK,
        silence_s: float = 3_600,
    ) -> None:
        self.directory = directory
        self.restarts = Restarts(directory, job="job", rules=rules)
        self.said: list[str] = []
        self.sign: Sign | None = None
        self.supervisor = Supervisor(
            [sys.executable, "-c", SCRIPT, str(directory), *map(str, codes)],
            after=self.restarts.after,
            silence_s=silence_s,
            look=lambda: self.sign,
            say=self.said.append,
        )

    def run(self) -> int:
        async def begun() -> int:
            await self.restarts.begin()
            return await self.supervisor.run()

        return asyncio.run(asyncio.wait_for(begun(), 120))

    @property
    def decisions(self) -> list[RestartDecided]:
        found = read_decisions(decisions_in(self.directory, job="job"))
        return [one for one in found if isinstance(one, RestartDecided)]

    @property
    def started(self) -> int:
        return len(list(self.directory.glob("started-*")))


@pytest.mark.parametrize(
    ("codes", "exit_code", "started"),
    [
        ((0,), 0, 1),
        ((76,), 76, 1),
        ((1,), 1, 1),
        ((137,), 137, 1),
        ((75, 75, 0), 0, 3),
        ((-9, -15, 3), 3, 3),
        ((75, 76), 76, 2),
    ],
)
def test_75_and_a_signal_mean_again_and_all_else_is_the_end(
    tmp_path: Path, codes: tuple[int, ...], exit_code: int, started: int
) -> None:
    watched = Watched(tmp_path, *codes)
    assert watched.run() == exit_code
    assert watched.started == started


@pytest.mark.parametrize(("code", "exit_code"), [(75, 75), (-9, 137)])
def test_restarts_in_a_row_have_a_limit(tmp_path: Path, code: int, exit_code: int) -> None:
    watched = Watched(tmp_path, code)
    assert watched.run() == exit_code
    assert watched.started == 1 + QUICK.failures_max
    assert "5 losses in a row" in watched.said[-1]
    assert watched.decisions[-1].action is RestartAction.HOLD


def test_every_decision_is_on_record_and_the_next_supervisor_goes_on_behind_it(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path, -9, -9, 3)
    assert watched.run() == 3
    actions = [one.action for one in watched.decisions]
    assert actions == [RestartAction.RESTART, RestartAction.RESTART, RestartAction.END]
    assert [one.row.failure_count for one in watched.decisions] == [1, 2, 2]
    (tmp_path / "again").mkdir()
    for path in (tmp_path / "job").rglob("*.json"):  # as if it had been stopped in the pause
        if b'"action":"end"' in path.read_bytes():
            path.unlink()
    rules = RestartRules(pause_s=0.01, pause_s_max=0.05, failures_max=2)
    again = Watched(tmp_path, *(-9,) * 9, rules=rules)
    assert again.run() == 137
    assert again.decisions[-1].row.failure_count == 3


def test_what_the_journal_of_an_attempt_says_decides_its_budget(tmp_path: Path) -> None:
    assert left_by(tmp_path, job="job") is None
    scenario = Scenario(job_id="job")
    scenario.when(scenario.notice(in_ms=60_000))
    scenario.given(scenario.cordoned(), scenario.positions(), *scenario.all_quiesced())
    scenario.given(scenario.staged(), scenario.durable(), scenario.verified(), scenario.published())
    scenario.when(ReportExited(exit_code=75, nodes=()))
    path = journal_path(tmp_path, job_id="job", epoch=1)
    path.parent.mkdir(parents=True)
    journal = Journal.open(path, job_id="job", epoch=1)
    journal.append(*scenario.history)
    journal.close()
    left = left_by(tmp_path, job="job")
    assert left == Left(epoch=1, drained=True, cause="spot_interruption", committed=True)
    drained = past_attempt(75, left, lived_ms=5)
    assert (drained.ended, drained.progressed) == (Ended.PREEMPTED, True)
    assert past_attempt(-9, left, lived_ms=5).ended is Ended.LOST


def test_a_state_directory_that_cannot_be_written_stops_no_restart(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file where its directory should be")
    assert Watched(tmp_path, -9, 0).run() == 0


def test_an_attempt_that_settled_ends_the_row(tmp_path: Path) -> None:
    rules = RestartRules(pause_s=0.01, pause_s_max=0.01, failures_max=1, healthy_s=0.0)
    watched = Watched(tmp_path, 75, 75, 75, 75, 0, rules=rules)
    assert watched.run() == 0
    assert watched.started == 5


@pytest.mark.parametrize(("number", "ends_with"), [(signal.SIGTERM, 75), (signal.SIGQUIT, 131)])
def test_a_signal_is_handed_on_and_nothing_starts_after_it(
    tmp_path: Path, number: signal.Signals, ends_with: int
) -> None:
    watched = Watched(tmp_path, "drain")

    async def scenario() -> int:
        running = asyncio.ensure_future(watched.supervisor.run())
        while not (tmp_path / "ready").exists():
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), number)
        return await asyncio.wait_for(running, 60)

    assert asyncio.run(scenario()) == ends_with
    assert watched.started == 1


def test_a_signal_in_a_pause_ends_it(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 75, rules=RestartRules(pause_s=3_600, pause_s_max=3_600))

    async def scenario() -> int:
        running = asyncio.ensure_future(watched.supervisor.run())
        while not watched.said:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(running, 60)

    assert asyncio.run(scenario()) == 75
    assert watched.started == 1


def test_one_that_falls_silent_is_killed_and_the_next_one_starts(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "hang", 0, silence_s=0.4)

    async def scenario() -> int:
        running = asyncio.ensure_future(watched.supervisor.run())
        while not watched.started:
            await asyncio.sleep(0.01)
        watched.sign = Sign(1, 1)  # it claimed, and then nothing more
        return await asyncio.wait_for(running, 60)

    assert asyncio.run(scenario()) == 0
    assert watched.started == 2
    assert "no sign of life" in watched.said[0]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started-0").read_text()), 0)


def test_signs_keep_an_attempt_alive_and_none_at_all_is_no_silence(tmp_path: Path) -> None:
    async def scenario(*, signs: bool) -> None:
        watched = Watched(tmp_path, "drain", silence_s=0.2)
        running = asyncio.ensure_future(watched.supervisor.run())
        for number in range(40):
            await asyncio.sleep(0.02)
            watched.sign = Sign(1, number) if signs else None
        assert not running.done()
        while not (tmp_path / "ready").exists():
            await asyncio.sleep(0.02)
            watched.sign = Sign(2, watched.sign.touched_unix_ns + 1) if watched.sign else None
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running, 60) == 75

    asyncio.run(scenario(signs=True))
    (tmp_path / "ready").unlink()
    asyncio.run(scenario(signs=False))


@given(st.integers(-64, 255))
def test_what_wants_a_restart(code: int) -> None:
    ended = past_attempt(code, None, lived_ms=0).ended
    assert (ended is Ended.LOST) == (code == 75 or code < 0)


def test_only_the_attempt_that_run_json_is_of_gives_signs(tmp_path: Path) -> None:
    assert sign_of_life(tmp_path, job="job") is None
    assert ended_with(tmp_path, job="job") is None
    info = RunInfo(job_id="job", epoch=2, pid=1, nats_url="", coordinator="")
    write_run_info(tmp_path, info)
    os.utime(run_info_path(tmp_path, "job"), ns=(5, 5))
    assert sign_of_life(tmp_path, job="job") == Sign(2, 5)
    give_sign(tmp_path, job="job", epoch=1)
    assert sign_of_life(tmp_path, job="job") == Sign(2, 5)
    give_sign(tmp_path, job="job", epoch=2)
    assert sign_of_life(tmp_path, job="job") != Sign(2, 5)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--job", "j"], "supervise: no command"),
        (["--", "true"], "--job is missing"),
        (["--job", "j", "--restarts", "-1", "--", "true"], "-1 is negative"),
        (["--job", "j", "--backoff", "nan", "--", "true"], "not a number of seconds"),
        (["--job", "j", "--silence", "0", "--", "true"], "silence"),
        (["--job", "j", "--", "/no/such/command"], "/no/such/command: No such file"),
    ],
)
def test_a_wrong_call_is_one_line(
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAINFSM_STATE_DIR", str(tmp_path))
    assert main(["supervise", *argv]) == 2
    assert message in capsys.readouterr().err
