"""Scripts for shells complete every command, its options, and what stands behind them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drainfsm.adapter import adapter_names
from drainfsm.cli.completion import SHELLS
from drainfsm.cli.main import COMMANDS, main
from drainfsm.cli.run import parser as run_parser

Output = pytest.CaptureFixture[str]

ASK = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_LINE="${*:2}"
COMP_POINT=${#COMP_LINE}
function=$(complete -p drainfsm | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
$function drainfsm "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: Output) -> Path:
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "drainfsm.bash"
    path.write_text(capsys.readouterr().out)
    return path


def asked(script: Path, *words: str) -> set[str]:
    bash = ["bash", "--norc", "-c", ASK, "bash", str(script), "drainfsm", *words]
    done = subprocess.run(bash, capture_output=True, text=True, check=True, cwd=script.parent)
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_adapters(script: Path) -> None:
    assert asked(script, "") >= {*COMMANDS, "help"}
    assert asked(script, "wat") == {"watch"}
    flags = {flag for action in run_parser()._actions for flag in action.option_strings}
    assert asked(script, "run", "--") == {flag for flag in flags if flag.startswith("--")}
    assert asked(script, "run", "--source", "a") == {n for n in adapter_names() if n[0] == "a"}
    assert asked(script, "completion", "") >= set(SHELLS)


def test_bash_completes_files_and_directories(script: Path) -> None:
    (script.parent / "folder").mkdir()
    (script.parent / "file.toml").touch()
    assert asked(script, "run", "--config", "fi") == {"file.toml"}
    assert asked(script, "run", "--state-dir", "f") == {"folder"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_names_every_command_and_is_of_its_shell(
    shell: str, tmp_path: Path, capsys: Output
) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in text] == []
    if (found := shutil.which(shell)) is not None:
        path = tmp_path / "script"
        path.write_text(text)
        subprocess.run([found, "-n", str(path)], check=True)


def test_without_shtab_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "zsh"]) == 2
    assert "pip install 'drainfsm[completion]'" in capsys.readouterr().err
