"""docs/tutorial.md, followed by its words: files as they stand there, commands in their order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
WAIT_S = 240


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return re.findall(r"^    (drainfsm .*)$", PAGE.read_text(), re.MULTILINE)


class Reader:
    """Somebody with two terminals in one directory."""

    def __init__(self, home: Path) -> None:
        self.project = home / "project"
        self.project.mkdir()
        bin_ = str(Path(sys.executable).parent)
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        self.environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(home), **kept}
        self.running: subprocess.Popen[bytes] | None = None
        self.outputs: list[Path] = []

    def types(self, command: str, *, code: int = 0) -> str:
        argv = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(
            argv, cwd=self.project, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}\n{self.said()}"
        return done.stdout

    def starts(self, command: str) -> None:
        self.outputs.append(self.project / f"run-{len(self.outputs)}")
        argv = [sys.executable, "-m", *shlex.split(command)]
        with self.outputs[-1].open("wb") as output:
            self.running = subprocess.Popen(
                argv, cwd=self.project, env=self.environment, stdout=output, stderr=output
            )

    def sees(self, text: str, *, command: str = "") -> None:
        """In the first terminal, or in what the command answers in the second."""
        give_up = time.monotonic() + WAIT_S
        while time.monotonic() < give_up:
            argv = [sys.executable, "-m", *shlex.split(command)]
            told = (
                subprocess.run(
                    argv, cwd=self.project, env=self.environment, capture_output=True, text=True
                ).stdout
                if command
                else self.said()
            )
            if text in told:
                return
            time.sleep(0.2)
        raise AssertionError(f"{text!r} never came: {self.said()}")

    def ends(self) -> int:
        assert self.running is not None
        return self.running.wait(timeout=WAIT_S)

    def said(self) -> str:
        return self.outputs[-1].read_text() if self.outputs else ""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    if made.running is not None and made.running.poll() is None:
        made.running.kill()
        made.running.wait()


def test_the_tutorial_from_its_script_to_the_report(reader: Reader) -> None:
    (script,) = blocks("python")
    (reader.project / "train.py").write_text(script)
    (launch,) = [block for block in blocks("bash") if block.startswith("torchrun")]
    (reader.project / "launch.sh").write_text(launch)
    init, apply, doctor, run, status, notify, explain, again, short, end, report, replay = (
        commands()
    )
    (diff,) = blocks("diff")
    shown = reader.types(init)
    assert [line for line in diff.splitlines() if line not in shown.splitlines()] == []
    reader.types(apply)
    reader.types(doctor)

    reader.starts(run)
    reader.sees("running, healthy since step 0", command=status)
    reader.types(notify)
    assert reader.ends() == 75, reader.said()
    assert "is committed" in reader.said()
    assert "because it fits" in reader.types(explain)

    reader.starts(again)
    reader.sees("the job resumes after step")
    reader.sees("running, healthy since step", command=status)
    reader.types(short)
    assert reader.ends() == 75, reader.said()
    assert "The save was skipped: remaining" in reader.types(explain)

    assert end == run, "the last one goes on to the end of the epochs, as any run"
    assert "1 committed, 1 skipped" in reader.types(report)
    assert "manifest_published" in reader.types(replay)
