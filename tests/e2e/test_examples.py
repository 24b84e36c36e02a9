"""``examples/``: each is run by the command of its README, drained, and run by it again."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from drainfsm_kit.examples import README, ROOT, Run, Shell, command_of, drained
from drainfsm_kit.running import DRAINFSM


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.parametrize("example", ["minimal.py", "own_checkpoint.py"])
def test_a_loop_of_one_process(shell: Shell, example: str) -> None:
    command = command_of(example)
    job = re.findall(r"--job (\S+)", command)[0]
    first, _ = drained(shell, command, lambda run: shell.notify(job))
    second, _ = drained(shell, command, lambda run: shell.notify(job))
    assert first + second == list(range(len(first + second)))


def test_two_ranks_of_ddp_see_every_sample_once(shell: Shell) -> None:
    command = command_of("ddp_dataloader.py")
    said = [drained(shell, command, lambda run: shell.notify("ddp")) for _ in range(2)]
    trained = [sorted(steps) for steps, _ in said]
    assert trained[0] + trained[1] == sorted([*range(trained[1][-1] + 1)] * 2), "by two ranks"
    lines = "".join(text for _, text in said)
    samples = [
        int(sample)
        for batch in re.findall(r"samples \[([^\]]*)\]", lines)
        for sample in batch.split(", ")
    ]
    assert len(samples) == len(set(samples)) == 4 * len(trained[0] + trained[1])


def test_fsdp2_goes_on_with_another_number_of_ranks(shell: Shell) -> None:
    command = command_of("fsdp2_reshard.py")
    first, _ = drained(shell, command, lambda run: shell.notify("fsdp2"))
    alone = command.replace("--nproc-per-node 2", "--nproc-per-node 1")
    second, text = drained(shell, alone, lambda run: shell.notify("fsdp2"))
    assert first + second == list(range(len(first + second)))
    assert f"step {second[0]} ranks 1 parameters" in text


def test_an_adapter_that_is_a_file(shell: Shell) -> None:
    command = command_of("adapter/")
    window = shell.directory / "store" / "window"

    def ends_soon(run: Run) -> None:
        window.write_text((datetime.now(UTC) + timedelta(seconds=60)).isoformat())

    first, _ = drained(shell, command, ends_soon)
    assert window.with_suffix(".cordoned").exists()
    assert window.with_suffix(".left").read_text() == "requeue True\n"
    window.unlink()
    second, _ = drained(shell, command, ends_soon)
    assert first + second == list(range(len(first + second)))


def test_a_launcher_of_your_own(shell: Shell) -> None:
    command = command_of("launcher.py")
    first, text = drained(shell, command, lambda run: run.process.terminate())
    assert text.endswith(f"exited, step {first[-1]} is saved\n")
    second, _ = drained(shell, command, lambda run: run.process.terminate())
    assert first + second == list(range(len(first + second)))


def test_two_machines_with_a_supervisor_each(shell: Shell) -> None:
    """A drain that the job itself is told of: both supervisors start it again. Then a notice to
    both, after which they start nothing."""
    command = command_of("two_machines.sh").replace("STORE=$STORE/pair ", "STORE=$STORE/pair exec ")
    with shell.run(command) as run:
        run.train()
        state = str(shell.directory / "pair" / "1")
        notify = [*DRAINFSM, "notify", "--job", "pair", "--state-dir", state, "--in", "60"]
        subprocess.run(notify, env=shell.environment, check=True, capture_output=True)
        run.wait(lambda: "the job resumes after step" in run.output(), what="second attempt")
        resumed = int(re.findall(r"resumes after step (\d+)", run.output())[0]) + 1
        run.wait(lambda: run.steps().count(resumed) == 2, what="step after the saved one")
        assert run.steps().count(resumed - 1) == 2, "it was trained by both ranks, and once"
        run.process.terminate()
        assert run.end() == 75, run.output()


def test_every_example_is_in_the_table() -> None:
    listed = set(re.findall(r"\]\(([^)]+)\)", README))
    tops = {path.name for path in (ROOT / "examples").iterdir()} - {"README.md", "__pycache__"}
    assert {link.partition("/")[0] for link in listed} >= tops
    for link in listed:
        assert (ROOT / "examples" / link).exists()
