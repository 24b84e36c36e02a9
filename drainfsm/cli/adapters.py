"""``drainfsm adapters``: what is installed, what each can do, and what cannot be imported."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from textwrap import wrap

import msgspec

from drainfsm.adapter import GROUP, options_name
from drainfsm.cli.options import Parser, nearest
from drainfsm.core.text import printable
from drainfsm.errors import ConfigError

USAGE = "adapters [NAME …] [--json]"

EPILOG = """\
Lists what `--source NAME` and `--cordon NAME` find: the entry points of the group
drainfsm.adapters, ours and those of other packages. Each is imported, and not started: nothing is
asked of a platform (`drainfsm doctor --source NAME` does that).

Exit code 1: one of them cannot be imported; a name that is not installed is an error of usage."""

METHODS = {
    "watch": "hears notices (--source)",
    "interpret": "says what a signal means",
    "cordon": "takes nodes out of service (--cordon)",
    "left": "requeues, or acknowledges",
    "stay": "stays until the platform ends the process",
    "show": "shows the job's state in the platform's tools",
}
"""What an adapter can do is what it has the methods for."""

TAKES_MACHINE = "acknowledges; the machine may go at once"
UNTOLD = "does not say before it is started"


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """One entry point."""

    name: str
    package: str
    """What installed it, with its version."""

    target: str
    can: tuple[str, ...]
    """Names of methods; empty where it cannot be imported, or does not say what it makes."""

    takes_machine: bool = False
    problem: str = ""
    """Why it cannot be imported."""


def parser() -> Parser:
    made = Parser("adapters", "List the adapters that are installed.", usage=USAGE, epilog=EPILOG)
    made.add_argument("names", metavar="NAME", nargs="*", help="only these")
    made.add_argument("--json", action="store_true", help="one JSON object each, in lines")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    for name in arguments.names:
        if name not in (installed := [point.name for point in points]):
            known = ", ".join(installed) or "none"
            raise ConfigError(f"no adapter {name} is installed ({known}){nearest(name, installed)}")
    wanted = arguments.names or [point.name for point in points]
    found = [inspect_point(point) for point in points if point.name in wanted]
    if arguments.json:
        for one in found:
            sys.stdout.buffer.write(msgspec.json.encode(one) + b"\n")
    else:
        print("\n".join(line for one in found for line in _text(one)))
    return int(any(one.problem for one in found))


def inspect_point(point: EntryPoint) -> Installed:
    """Imports it. Whatever that raises is its problem."""
    dist = point.dist
    package = f"{dist.name} {dist.version}" if dist is not None else ""
    try:
        made = _made_by(point.load())
        can = tuple(name for name in METHODS if callable(getattr(made, name, None)))
        takes = bool(getattr(made, "takes_machine", False))
        problem = ""
    except Exception as error:  # of whoever wrote it
        can, takes, problem = (), False, f"{type(error).__name__}: {error}{_hint(point, error)}"
    return Installed(
        name=point.name,
        package=package,
        target=point.value,
        can=can,
        takes_machine=takes,
        problem=problem,
    )


def _made_by(factory: object) -> type | None:
    """The class of the adapter: the factory itself, or what a function says that it returns."""
    if isinstance(factory, type):
        return factory
    try:
        hinted = typing.get_type_hints(factory).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    return hinted if isinstance(hinted, type) else None


def _hint(point: EntryPoint, error: Exception) -> str:
    """Which extra of a package of ours brings what is missing."""
    if not isinstance(error, ImportError) or point.dist is None:
        return ""
    extras = point.dist.metadata.get_all("Provides-Extra") or []
    if point.name not in extras:
        return ""
    return f" (pip install '{point.dist.name}[{point.name}]')"


def _text(one: Installed) -> Iterator[str]:
    yield f"{one.name:12} {printable(one.package)}, {printable(one.target)}"
    if one.problem:
        yield f"{'':12} cannot be imported: {printable(one.problem)}"
        return
    acts = dict(METHODS)
    if one.takes_machine:
        acts["left"] = TAKES_MACHINE
    can = "; ".join(acts[name] for name in one.can) or UNTOLD
    yield from wrap(can, width=96, initial_indent=" " * 13, subsequent_indent=" " * 13)
    if one.can:
        yield f"{'':12} options: [adapters.{options_name(one.name)}] of drainfsm.toml"
