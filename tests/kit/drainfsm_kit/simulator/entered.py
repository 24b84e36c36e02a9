"""Which functions of the product a run has entered: what is never entered, nothing is known of."""

from __future__ import annotations

import ast
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import drainfsm

PACKAGE = Path(drainfsm.__file__).parent
ROOMS = ("core", "log", "runtime", "store")
"""Those that the simulator runs."""


@contextmanager
def watching() -> Iterator[set[str]]:
    """Inside, on any thread that begins, what is entered comes into the set when it is left."""
    seen: set[CodeType] = set()
    found: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        seen.add(frame.f_code)

    before = sys.gettrace()
    threading.settrace(note)
    sys.settrace(note)
    try:
        yield found
    finally:
        sys.settrace(before)
        threading.settrace(None)
        found |= {name for code in seen if (name := _name_of(code)) is not None}


def _name_of(code: CodeType) -> str | None:
    """``store/commits.py CommitLog.claim``; None: no function of those rooms."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE) or "<" in code.co_name:
        return None
    inner = path.relative_to(PACKAGE)
    if inner.parts[0] not in ROOMS:
        return None
    return f"{inner.as_posix()} {code.co_qualname}"


def functions() -> set[str]:
    """All that there are, those of protocols not counted: they have no body."""
    found: set[str] = set()
    for room in ROOMS:
        for path in (PACKAGE / room).rglob("*.py"):
            place = path.relative_to(PACKAGE).as_posix()
            tree = ast.parse(path.read_text())
            found |= {f"{place} {name}" for name in _defined(tree, "")}
    return found


def _defined(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name, bases=bases):
                if not any(isinstance(one, ast.Name) and one.id == "Protocol" for one in bases):
                    yield from _defined(child, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield f"{prefix}{name}"
                yield from _defined(child, f"{prefix}{name}.<locals>.")
            case _:
                yield from _defined(child, prefix)


def summary(entered: Set[str]) -> Iterator[str]:
    """One line a package."""
    all_of, of = Counter(map(_package, functions())), Counter(map(_package, entered))
    yield "functions entered: " + ", ".join(
        f"{package} {of[package]} of {count}" for package, count in sorted(all_of.items())
    )


def _package(name: str) -> str:
    room, _, rest = name.partition(" ")[0].partition("/")
    inner = rest.partition("/")[0]
    return f"{room}/{inner}" if room == "runtime" and not inner.endswith(".py") else room
