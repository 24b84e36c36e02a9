"""The examples of ``examples/`` that need a framework, run by the commands of their README."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from drainfsm_kit.examples import Shell, command_of, drained


@pytest.mark.parametrize(
    ("example", "package"),
    [("lightning_trainer.py", "lightning"), ("hf_trainer.py", "transformers")],
)
def test_a_trainer_of_two_ranks(tmp_path: Path, example: str, package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is missing: `make frameworks` installs it")
    shell, command = Shell(tmp_path), command_of(example)
    job = re.findall(r"--job (\S+)", command)[0]
    first, _ = drained(shell, command, lambda run: shell.notify(job))
    second, _ = drained(shell, command, lambda run: shell.notify(job))
    assert first + second == list(range(len(first + second)))
