"""``drainfsm completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from drainfsm.cli.options import Parser
from drainfsm.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")

USAGE = f"completion {{{','.join(SHELLS)}}}"

EPILOG = """\
Prints a script for the shell; nothing of drainfsm runs while you type. Put it where the shell
looks for it:

    drainfsm completion bash > ~/.local/share/bash-completion/completions/drainfsm
    drainfsm completion zsh > ~/.zfunc/_drainfsm        # with fpath+=~/.zfunc before compinit
    drainfsm completion fish > ~/.config/fish/completions/drainfsm.fish

It needs the package shtab, and only when it is printed: pip install 'drainfsm[completion]'. Print
it again after an update: options and installed adapters stand in it."""

FILES = {"FILE", "PATH", "URL_OR_PATH", "STORE"}
"""Metavars of what may be a file; ``DIR`` is a directory."""

ADAPTER_FLAGS = {"--source", "--cordon"}


def parser() -> Parser:
    made = Parser("completion", "Complete in a shell.", usage=USAGE, epilog=EPILOG)
    made.add_argument("shell", choices=SHELLS)
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    try:
        shtab = importlib.import_module("shtab")
    except ImportError as error:
        raise ConfigError(
            "completion: shtab is missing: install it with `pip install 'drainfsm[completion]'`"
        ) from error
    print(shtab.complete(whole_parser(shtab), shell=arguments.shell))
    return 0


def whole_parser(shtab: ModuleType) -> argparse.ArgumentParser:
    """Every command as a part of one parser."""
    from drainfsm.cli.main import COMMANDS, module_of

    made = argparse.ArgumentParser(prog="drainfsm")
    made.add_argument("-V", "--version", action="store_true", help="print the version")
    commands = made.add_subparsers(metavar="COMMAND")
    for name, text in COMMANDS.items():
        whole = importlib.import_module(module_of(name)).parser()
        part = commands.add_parser(name, help=text, parents=[whole], add_help=False)
        for action in part._actions:
            _tell(shtab, action)
    helped = commands.add_parser("help", help="say more about a command", add_help=False)
    helped.add_argument("command", choices=tuple(COMMANDS))
    return made


def _tell(shtab: Any, action: argparse.Action) -> None:
    """What stands behind the option."""
    if ADAPTER_FLAGS & set(action.option_strings):
        from drainfsm.adapter import adapter_names

        action.choices = adapter_names()
    elif action.metavar in FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif action.metavar == "DIR":
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
