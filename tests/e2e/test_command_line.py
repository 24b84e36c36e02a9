"""``run``, ``notify``, ``replay`` as a user types them: configuration, exit codes, messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drainfsm.core import events as e
from drainfsm.core.codec import encode_lines
from drainfsm.testing.scenario import Scenario

DRAINFSM = str(Path(sys.executable).with_name("drainfsm"))
WAIT_S = 120
JOB = "import sys, time; print('up', flush=True); time.sleep(600)"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Nothing of whoever runs the tests; the store from the environment, the rest from a file."""
    (tmp_path / "drainfsm.toml").write_text(
        f'job = "e2e"\nstate_dir = "{tmp_path}/state"\n'
        "[allowances]\nexit_margin_ms = 1500\nquiesce_ms = 1000\ncommit_ms = 1000\n"
    )
    own = {k: v for k, v in os.environ.items() if not k.startswith("DRAINFSM_")}
    return own | {"DRAINFSM_STORE": str(tmp_path / "store")}


@pytest.fixture
def running(tmp_path: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """An agent whose job is up: one process that knows nothing of drains."""
    agent = subprocess.Popen(
        [DRAINFSM, "run", "--", sys.executable, "-c", JOB],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert agent.stdout is not None
    assert agent.stdout.readline() == "up\n"
    yield agent
    agent.kill()
    agent.communicate(timeout=WAIT_S)


def _drainfsm(
    directory: Path, environment: dict[str, str], *argv: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DRAINFSM, *argv],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )


def test_a_notice_by_hand_drains_the_job_and_the_replay_tells_it(
    running: subprocess.Popen[str], tmp_path: Path, environment: dict[str, str]
) -> None:
    given = _drainfsm(tmp_path, environment, "notify", "--in", "8", "--cause", "test", "--id", "x")
    assert given.returncode == 0, given.stderr
    assert given.stdout.startswith("notice notify/x is on record: drain e2e/1/1 ")
    assert running.wait(timeout=WAIT_S) == 75
    replayed = _drainfsm(tmp_path, environment, "replay", "--json")
    assert replayed.returncode == 0, replayed.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in replayed.stdout.splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds[0] == "attempt_started"
    assert kinds.index("notice_received") < kinds.index("save_skipped") < kinds.index("exited")
    assert kinds[-1] == "final_state"
    assert lines[-1]["phase"] == "exited"
    assert lines[-1]["exit_code"] == 75
    exited = lines[kinds.index("exited")]
    assert exited["remaining_ms"] > 0
    started = lines[0]["event"]
    assert started["allowances"]["exit_margin_ms"] == 1500
    assert started["store"].endswith("/store")


def test_a_soft_notice_is_taken_back_by_its_id_and_the_job_goes_on(
    running: subprocess.Popen[str], tmp_path: Path, environment: dict[str, str]
) -> None:
    for argv in (
        ["--in", "3600", "--soft", "--id", "x"],
        ["--withdraw", "--id", "x", "--cause", "uncordoned"],
    ):
        done = _drainfsm(tmp_path, environment, "notify", *argv)
        assert done.returncode == 0, done.stderr
    replayed = _drainfsm(tmp_path, environment, "replay", "--drain", "e2e/1/1")
    assert "cancelled  drain_cancelled" in replayed.stdout
    assert running.poll() is None


@pytest.mark.parametrize("seconds", ["-5", "40000000"])
def test_a_deadline_that_cannot_be_acted_on_is_refused_and_nothing_is_recorded(
    running: subprocess.Popen[str], tmp_path: Path, environment: dict[str, str], seconds: str
) -> None:
    done = _drainfsm(tmp_path, environment, "notify", "--soft", "--in", seconds)
    assert done.returncode == 2
    assert done.stderr.startswith(f"drainfsm: --in {float(seconds):g}: ")
    replayed = _drainfsm(tmp_path, environment, "replay", "--json")
    assert "notice_received" not in replayed.stdout
    assert running.poll() is None


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_ends_by_itself_gives_its_own_exit_code(
    tmp_path: Path, environment: dict[str, str], code: int
) -> None:
    command = [sys.executable, "-c", f"import sys; print('hello'); sys.exit({code})"]
    done = _drainfsm(tmp_path, environment, "run", "--", *command)
    assert done.returncode == code, done.stderr
    assert done.stdout == "hello\n"


def test_a_command_that_is_not_there_is_found_out_before_anything_is_claimed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    done = _drainfsm(tmp_path, environment, "run", "--", "no-such-program")
    assert done.returncode == 2
    assert "no-such-program" in done.stderr
    assert not (tmp_path / "store" / "commits").exists()


def test_a_store_that_is_a_file_is_refused_and_nothing_is_started(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "store").write_text("where a file system ought to be mounted")
    ran = ["run", "--", sys.executable, "-c", "print('trained')"]
    done = _drainfsm(tmp_path, environment, *ran)
    assert (done.returncode, done.stdout) == (2, "")
    assert "it is a file" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "store").unlink()
    done = _drainfsm(tmp_path, environment, *ran)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_a_state_directory_that_cannot_be_used_stops_the_job_before_it_is_claimed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "state").touch()
    done = _drainfsm(tmp_path, environment, "run", "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith(f"drainfsm: state_dir {tmp_path}/state: cannot write in")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_typo_stops_the_job_before_anything_is_claimed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    done = _drainfsm(tmp_path, environment | {"DRAINFSM_GRCAE": "5"}, "run", "--", "true")
    assert done.returncode == 2
    assert "did you mean DRAINFSM_GRACE?" in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_reader_that_has_enough_ends_the_command_quietly(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    scenario = Scenario()
    for count in range(2_000):  # far more than a pipe holds
        now = scenario.now_unix_ms
        down = e.SourceUnknown(source="aws", node=0, since_unix_ms=now, detail="down")
        scenario.when(e.SourceRecovered(source="aws", node=0) if count % 2 else down)
    (tmp_path / "long.jsonl").write_bytes(encode_lines(scenario.history))
    command = subprocess.Popen(
        [DRAINFSM, "replay", "--json", "--file", "long.jsonl"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    assert command.stderr is not None
    assert "attempt_started" in command.stdout.readline()
    command.stdout.close()
    assert command.wait(timeout=WAIT_S) == 141
    assert command.stderr.read() == ""
    command.stderr.close()


def test_a_terminal_that_knows_only_ascii_is_no_reason_to_fail(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    body = b'{"kind":"moon_phase","text":"\xe2\x98\xbe"}'
    record = (
        b'{"v":1,"id":"a","job_id":"j","epoch":1,"follows":0,"at_unix_ms":5,"events":[%s]}' % body
    )
    (tmp_path / "odd.jsonl").write_bytes(record + b"\n")
    ascii_only = environment | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = _drainfsm(tmp_path, ascii_only, "replay", "--file", "odd.jsonl")
    assert done.returncode == 0, done.stderr
    assert "[unknown] moon_phase" in done.stdout
