"""A job that is drained, resumed and told about, with nothing but the standard library and an
installed ``drainfsm``; two of them show that one release goes on with what another has left.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

WAIT_S = 180
JOB, ENDLESS = "smoke", 1_000_000_000
SCRIPT = """\
import json
import os
import time
from pathlib import Path

import drainfsm

weights = {"w": 0.0}


def save(directory, step):
    (directory / "weights.json").write_text(json.dumps(weights))


def load(directory, step):
    weights.update(json.loads((directory / "weights.json").read_text()))


session = drainfsm.attach()
checkpoint = session.own_checkpoint(save=save, load=load, saver="my-json")
first = checkpoint.restore()
with Path("first-steps").open("a") as file:
    file.write(json.dumps([first, weights["w"]]) + "\\n")
for step in range(first, int(os.environ["STEPS"])):
    weights["w"] += 1.0
    time.sleep(0.05)
    if checkpoint.step_done(step):
        break
session.close()
"""


class Installation:
    """One environment with a ``drainfsm`` in it, used from a directory that is not the source."""

    def __init__(
        self,
        venv: Path,
        directory: Path,
        *,
        job: str = JOB,
        steps: int = ENDLESS,
        script: str = SCRIPT,
    ) -> None:
        self.job = job
        self.python = venv / "bin" / "python"
        self.directory = directory
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environment = kept | {
            "DRAINFSM_STATE_DIR": str(directory / "state"),
            "STEPS": str(steps),
        }
        (directory / "train.py").write_text(script)

    def command(self, *arguments: str) -> list[str]:
        return [str(self.python.with_name("drainfsm")), *arguments]

    def says(self, *arguments: str) -> str:
        done = self._run(arguments)
        if done.returncode:
            raise SystemExit(f"{arguments}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def tries(self, *arguments: str) -> bool:
        return self._run(arguments).returncode == 0

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def drain(self, *, begun: int) -> str:
        """Start the job, drain it once it trains, and return what its agent printed. ``begun``: how
        often it has begun before."""
        output = self.directory / f"attempt-{begun}"
        argv = self._run_command()
        with output.open("wb") as file:
            agent = subprocess.Popen(
                argv, cwd=self.directory, env=self.environment, stdout=file, stderr=file
            )
        try:
            steps = self.directory / "first-steps"
            wait_for(
                lambda: steps.exists() and steps.read_text().count("\n") > begun, agent, output
            )
            time.sleep(1)  # some steps
            notice = ("notify", "--job", self.job, "--in", "120", "--cause", "maintenance")
            wait_for(lambda: self.tries(*notice), agent, output)
            code = agent.wait(timeout=WAIT_S)
        finally:
            agent.kill()
            agent.wait()
        said = output.read_text()
        if code != 75 or "is committed" not in said:
            raise SystemExit(f"exit code {code} instead of 75, or nothing committed: {said}")
        return said

    def finish(self) -> str:
        """Start the job, and return what its agent printed until the job had ended by itself."""
        done = subprocess.run(
            self._run_command(),
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"exit code {done.returncode}: {done.stdout}")
        return done.stdout

    def _run_command(self) -> list[str]:
        store = str(self.directory / "store")
        options = ["--job", self.job, "--store", store, "--nats", "nats://127.0.0.1:9"]
        return self.command("run", *options, "--", str(self.python), "train.py")


def wait_for(there: Callable[[], bool], agent: subprocess.Popen[bytes], output: Path) -> None:
    give_up = time.monotonic() + WAIT_S
    while not there():
        if time.monotonic() > give_up or agent.poll() is not None:
            raise SystemExit(f"it never came: {output.read_text()}")
        time.sleep(0.1)


def committed_step(said: str) -> int:
    found = re.search(r"step (\d+) is committed", said)
    if found is None:
        raise SystemExit(f"no committed step: {said}")
    return int(found[1])


def smoke(old: Path, new: Path) -> str:
    """Drained with one installation, resumed and told about with the other.

    Raises:
        SystemExit: something was not as promised; it says what.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        before, after = Installation(old, directory), Installation(new, directory)
        versions = before.says("--version").strip(), after.says("--version").strip()
        saved = committed_step(before.drain(begun=0))
        told = after.says("replay", "--job", JOB)
        if "manifest_published" not in told:
            raise SystemExit(f"the log is not replayed: {told}")
        again = committed_step(after.drain(begun=1))
        begun = [json.loads(line) for line in (directory / "first-steps").read_text().splitlines()]
        if begun != [[0, 0.0], [saved + 1, float(saved + 1)]] or again <= saved:
            raise SystemExit(f"saved step {saved}, then {again}, but the job began at {begun}")
        if after.says("explain", "--job", JOB).count("because it fits") != 2:
            raise SystemExit("explain does not tell of both drains")
    return f"{versions[0]} saved step {saved}; {versions[1]} resumed at {saved + 1}, saved {again}"
