"""House rules that no linter of ours checks."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import drainfsm_kit as kit
from drainfsm.cli.options import OPTIONS
from drainfsm.cli.settings import ADAPTER_VARIABLE, OTHER_VARIABLES

ROOT = Path(__file__).parents[2]
SHIPPED = sorted([*(ROOT / "drainfsm").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")])
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 40

CATALOGUES = {"drainfsm/core/events.py"}
"""Lists of small classes that belong together, and are read by looking one of them up."""


def test_no_shipped_file_is_longer_than_400_lines() -> None:
    lengths = {_path(path): len(path.read_text().splitlines()) for path in SHIPPED}
    long = {name: count for name, count in lengths.items() if count > FILE_LINES_MAX}
    assert lengths.keys() >= CATALOGUES
    assert {name: count for name, count in long.items() if name not in CATALOGUES} == {}


def test_no_shipped_function_is_longer_than_40_lines() -> None:
    long = {}
    for path in SHIPPED:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = _length(node)
                if length > FUNCTION_LINES_MAX:
                    long[f"{_path(path)}:{node.lineno} {node.name}"] = length
    assert long == {}


def _path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body. Not counted: the docstring, and a ``match`` that is the whole body."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body or (len(body) == 1 and isinstance(body[0], ast.Match)):
        return 0
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def test_every_environment_variable_in_the_code_is_known_to_the_settings() -> None:
    known = {option.variable for option in OPTIONS} | OTHER_VARIABLES
    for path in SHIPPED:
        for name in re.findall(r"[\"'](DRAINFSM_[A-Z0-9_]+)[\"']", path.read_text()):
            assert name in known or ADAPTER_VARIABLE.match(name), f"{path}: {name}"


def test_no_part_of_the_runtime_is_wired_from_outside() -> None:
    """What an object works with is given to its constructor."""
    found = []
    for path in (ROOT / "drainfsm" / "runtime").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets: list[ast.expr] = []
            if isinstance(node, ast.AnnAssign | ast.AugAssign):
                targets = [node.target]
            elif isinstance(node, ast.Assign):
                targets = node.targets
            found += [
                f"{_path(path)}:{target.lineno} {ast.unparse(target)}"
                for target in targets
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute)
            ]
    assert found == []


def test_the_test_kit_overrides_nothing_private() -> None:
    """It plugs in where the code has ports, or a change in there would break it unseen."""
    modules = [import_module(one.name) for one in walk_packages(kit.__path__, f"{kit.__name__}.")]
    found = set()
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__.startswith(kit.__name__):
                ours = [base for base in value.__mro__ if base.__module__.startswith("drainfsm.")]
                private = {name for base in ours for name in vars(base) if _is_private(name)}
                found |= {f"{value.__name__}.{name}" for name in private & vars(value).keys()}
    assert found == set()


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_abc_impl"


def test_no_two_classes_have_one_name() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in SHIPPED:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{_path(path)}:{node.lineno}")
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_whoever_decodes_foreign_bytes_catches_what_decoders_raise() -> None:
    decoders = re.compile(
        r"\bjson\.(loads|load|decode)\(|msgpack\.decode\(|Decoder\(|tomllib\.load"
    )
    loose = [
        _path(path)
        for path in SHIPPED
        if decoders.search(path.read_text()) and "UNREADABLE" not in path.read_text()
    ]
    own_bytes = ("drainfsm/demo/", "drainfsm/testing/")
    assert [name for name in loose if not name.startswith(own_bytes)] == []


def test_every_planted_fault_still_finds_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "mutants")
    faults = import_module("faults").FAULTS
    counts = {(one.file, one.name): (ROOT / one.file).read_text().count(one.old) for one in faults}
    assert {fault: count for fault, count in counts.items() if count != 1} == {}
    assert len(counts) == len(faults), "two faults have one name"
    tests = {ROOT / test for one in faults for test in one.tests}
    assert [test for test in sorted(tests) if not test.exists()] == []
