"""Every command line and every drainfsm.toml in the documentation is one that the program takes."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from drainfsm.cli import run
from drainfsm.cli.main import COMMANDS, module_of
from drainfsm.cli.settings import load_settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _command_lines() -> list[str]:
    """Indented lines, and those of shell blocks, that begin with ``drainfsm``."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        text += "".join(re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
        found += re.findall(r"^(?: {4}|(?:exec|srun) )(drainfsm .*)$", text, re.MULTILINE)
    return sorted({line.split(" #")[0].split(" > ")[0].strip() for line in found})


LINES = _command_lines()


def test_the_documentation_has_commands() -> None:
    assert {line.split()[1] for line in LINES} >= {"run", "notify", "replay", "explain", "export"}


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_of_the_documentation_is_understood(line: str) -> None:
    _, command, *argv = shlex.split(line)
    assert command in COMMANDS
    if "--" in argv:
        assert argv[argv.index("--") + 1 :]
        argv = argv[: argv.index("--")]
    import_module(module_of(command)).parser().parse(argv)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_configuration_file_of_the_documentation_is_taken(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for block in blocks:
        (tmp_path / "drainfsm.toml").write_text(block)
        settings = load_settings(vars(run.parser().parse([])), environment={}, directory=tmp_path)
        assert settings.run_config(["python", "train.py"]).job == settings.job


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_of_the_documentation_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = re.findall(r"(?:^ {4}|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    assert set(named) <= targets
