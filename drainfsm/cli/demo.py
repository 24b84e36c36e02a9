"""``drainfsm demo``: the whole story on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from drainfsm.cli.interruption import cleaning_up
from drainfsm.cli.options import Parser
from drainfsm.errors import ConfigError

USAGE = "demo [--dir DIR] [--json FILE]"

EPILOG = """\
Trains a small transformer on the source files of Python's standard library, with 2 agents of 2
ranks each; hands in a notice, saves, leaves, resumes; then again with a window too short to save.
Exits with 0 only if every criterion holds."""

NEEDED = ("rich", "torch", "xxhash")


def parser() -> Parser:
    made = Parser("demo", "The whole story on this machine.", usage=USAGE, epilog=EPILOG)
    made.add_argument(
        "--dir", metavar="DIR", type=Path, help="keep everything here (default: a temporary one)"
    )
    made.add_argument("--json", metavar="FILE", type=Path, help="write the summary as data too")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the demo needs {', '.join(missing)}: install it with `pip install 'drainfsm[demo]'`"
        )
    from drainfsm.demo.story import main as tell

    with cleaning_up():
        return tell(arguments)
