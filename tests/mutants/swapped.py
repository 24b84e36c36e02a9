"""Mutants put into running code: the tests are imported once, and every mutant is tried in a fork
of that process, by the tests that reach it, the quickest first."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import coverage  # type: ignore[import-not-found,unused-ignore]
import pytest
from fault import Fault
from run import KILLED, NO_VERDICT, OPTIONS, ROOT, SURVIVED, Verdict, say

CPU_S_MIN = 20
"""What takes this much of a processor's time, and ten times what it took without the mutant, comes
to no end, and is noticed by that."""

WALL_S_MAX = 300
NOT_SWAPPED = "not swapped"
"""It changes what happens when the module is imported."""


class Reaches(NamedTuple):
    """What the tests did on the code as it is."""

    seconds: dict[str, float]
    """By test: how long it took."""

    tests: dict[str, dict[str, list[str]]]
    """By file and line: those that were there."""

    def of(self, file: str, lines: Iterable[int]) -> list[str]:
        """The quickest first."""
        of_file = self.tests.get(file, {})
        found = {test for line in lines for test in of_file.get(str(line), ())}
        return sorted(found & self.seconds.keys(), key=lambda test: self.seconds[test])


class Swap(NamedTuple):
    """A function's code in place of that of a running one."""

    live: FunctionType
    code: CodeType
    lines: frozenset[int]
    """Those of the statement that is changed."""


def swap_of(fault: Fault) -> Swap | None:
    """None: the change is not inside of one function."""
    before, after = _functions(fault.old), _functions(fault.new)
    changed = [name for name in before if ast.dump(before[name]) != ast.dump(after[name])]
    if len(changed) != 1 or _rest(fault.old) != _rest(fault.new):
        return None
    [name] = changed
    module = importlib.import_module(fault.file.removesuffix(".py").replace("/", "."))
    live, code = _live(module, name), _code(fault, name)
    if live is None or live.__code__.co_freevars != code.co_freevars:
        return None
    return Swap(live, code, _changed_lines(fault, before[name]))


@lru_cache(maxsize=4)
def _functions(text: str) -> dict[str, ast.FunctionDef]:
    found = {}
    for node in ast.parse(text).body:
        inner = [(f"{node.name}.", n) for n in node.body] if isinstance(node, ast.ClassDef) else []
        for prefix, each in [("", node), *inner]:
            if isinstance(each, ast.FunctionDef):
                found[f"{prefix}{each.name}"] = each
    return found


@lru_cache(maxsize=4)
def _rest(text: str) -> str:
    """All that is not the body of a function."""
    tree = ast.parse(text)
    for node in tree.body:
        for each in [node, *(node.body if isinstance(node, ast.ClassDef) else [])]:
            if isinstance(each, ast.FunctionDef):
                each.body = []
    return ast.dump(tree)


def _live(module: object, name: str) -> FunctionType | None:
    found: Any = module
    for part in name.split("."):
        found = vars(found).get(part)
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(getattr(found, "__func__", found))
    return found if isinstance(found, FunctionType) else None


def _code(fault: Fault, name: str) -> CodeType:
    waiting = [compile(fault.new, str(ROOT / fault.file), "exec")]
    while True:
        for const in waiting.pop().co_consts:
            if isinstance(const, CodeType):
                if const.co_qualname == name:
                    return const
                waiting.append(const)


def _changed_lines(fault: Fault, function: ast.FunctionDef) -> frozenset[int]:
    """Of the smallest statement of ``function`` that holds the change."""
    old, new = fault.old.splitlines(), fault.new.splitlines()
    pairs = enumerate(zip(old, new, strict=False), start=1)
    first = next((n for n, (was, now) in pairs if was != now), len(new) + 1)
    inside = [n for n in ast.walk(function) if isinstance(n, ast.stmt)]
    holding = [n for n in inside if n.lineno <= first <= (n.end_lineno or 0)]
    smallest = min(holding, key=lambda n: (n.end_lineno or 0) - n.lineno)
    if smallest is function:
        smallest = function.body[0]
    return frozenset(range(smallest.lineno, (smallest.end_lineno or 0) + 1))


class Trials:
    """A plugin of pytest: tries mutants where the tests would run."""

    def __init__(
        self,
        faults: Sequence[Fault],
        *,
        jobs: int,
        tests_s: float,
        known: Path | None,
        found: Path,
    ) -> None:
        """``known``: holds what the tests reach, or will. ``found`` gets a line a verdict."""
        self._faults = faults
        self._known = known
        self._jobs = jobs
        self._tests_s = tests_s
        self._found = found
        self._failed = ""
        self._items: dict[str, pytest.Item] = {}
        # Sockets lie in it, and the path of one has room for a hundred characters.
        self._top = Path(tempfile.mkdtemp(prefix="m-"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        try:
            reaches = self._reaches(session)
            self._judge(reaches)
        finally:
            shutil.rmtree(self._top, ignore_errors=True)
        return True

    def _reaches(self, session: pytest.Session) -> Reaches:
        known = self._known or self._top / "reached"
        if not known.exists():
            pid = self._forked(0, lambda: self._record(known))
            if os.waitpid(pid, 0)[1] != 0:
                pytest.exit("the tests did not come to their end", returncode=2)
        reaches = Reaches(*json.loads(known.read_text()))
        took_s = sum(reaches.seconds.values())
        print(f"{len(reaches.seconds)} tests, {took_s:.0f} s", flush=True)
        return reaches

    def _record(self, known: Path) -> bool:
        paths = [
            p for room in ("core", "store", "log") for p in (ROOT / "drainfsm" / room).glob("*.py")
        ]
        files = {str(path): str(path.relative_to(ROOT)) for path in paths}
        watched = coverage.Coverage(data_file=None, include=[*files])
        watched.set_option("run:disable_warnings", ["no-data-collected"])
        seconds = {}
        watched.start()
        for item in self._items.values():
            began = time.monotonic()
            watched.switch_context(item.nodeid)
            self._run(item)
            if self._failed:
                print(f"left out: without any mutant, this fails: {self._failed}", flush=True)
                self._failed = ""
            else:
                seconds[item.nodeid] = time.monotonic() - began
        watched.stop()
        data = watched.get_data()
        tests = {files[file]: data.contexts_by_lineno(file) for file in data.measured_files()}
        known.write_text(json.dumps([seconds, tests]))
        return True

    def _run(self, item: pytest.Item) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    def _forked(self, number: int, what: Callable[[], bool]) -> int:
        """The child's id; it ends with 0 where ``what()`` is true."""
        pid = os.fork()
        if pid:
            return pid
        code = 2
        try:
            os.setsid()
            plugins = next(iter(self._items.values())).config.pluginmanager
            for name in ("terminalreporter", "drainfsm-progress"):
                plugins.unregister(name=name)
            place = self._top / str(number)
            place.mkdir()
            os.environ["PYTEST_DEBUG_TEMPROOT"] = str(place)
            code = 0 if what() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _judge(self, reaches: Reaches) -> None:
        running: dict[int, tuple[Fault, float, Path]] = {}
        for number, fault in enumerate(self._faults, start=1):
            swap = swap_of(fault)
            reached = [] if swap is None else reaches.of(fault.file, swap.lines)
            if swap is None or not reached:
                self._note(fault, Verdict(NOT_SWAPPED, "", "", 0.0))
                continue
            there = {t: reaches.seconds[t] for t in reached if t in self._items}
            total = accumulate(there.values())
            chosen = {t: there[t] for t, s in zip(there, total, strict=True) if s <= self._tests_s}
            place = self._top / f"{number}.said"
            pid = self._forked(number, partial(self._try, swap, chosen, place))
            running[pid] = (fault, time.monotonic(), place)
            while len(running) >= self._jobs:
                self._wait(running)
        while running:
            self._wait(running)

    def _try(self, swap: Swap, chosen: Mapping[str, float], place: Path) -> bool:
        """In the fork: the tests pass."""
        cpu_s = int(CPU_S_MIN + 10 * sum(chosen.values()))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        signal.alarm(WALL_S_MAX)
        said = os.open(place.with_suffix(".out"), os.O_WRONLY | os.O_CREAT)
        for fd in (1, 2):
            os.dup2(said, fd)
        live, code, _ = swap
        live.__code__ = code
        for test in chosen:
            place.write_text(test)
            self._run(self._items[test])
            if self._failed:
                return False
        return True

    def _wait(self, running: dict[int, tuple[Fault, float, Path]]) -> None:
        pid, status = os.wait()
        fault, began, place = running.pop(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what the tests had started
        seconds, code = time.monotonic() - began, os.waitstatus_to_exitcode(status)
        last = place.read_text() if place.exists() else ""
        kind = last.split("/")[1] if "/" in last else ""
        if code == 0:
            verdict = Verdict(SURVIVED, "", "", seconds)
        elif code in (1, -signal.SIGXCPU):
            verdict = Verdict(KILLED, last, kind, seconds)
        else:
            verdict = Verdict(NO_VERDICT, f"exit code {code}: {last}", "", seconds)
        shutil.rmtree(self._top / place.stem, ignore_errors=True)
        self._note(fault, verdict)

    def _note(self, fault: Fault, verdict: Verdict) -> None:
        if verdict.what != NOT_SWAPPED:
            say(fault, verdict)
        with self._found.open("a") as file:
            file.write(json.dumps([self._faults.index(fault), *verdict]) + "\n")


def tried(
    faults: Sequence[Fault],
    tests: Sequence[str],
    *,
    jobs: int,
    tests_s: float,
    known: Path | None,
) -> Iterator[tuple[Fault, Verdict]]:
    """Each mutant with its verdict; what cannot be tried like this has ``NOT_SWAPPED``.

    In a process of its own: the tests of the rest must find nothing imported."""
    sys.stdout.flush()
    with tempfile.NamedTemporaryFile() as file:
        pid = os.fork()
        if pid == 0:
            found = Path(file.name)
            trials = Trials(faults, jobs=jobs, tests_s=tests_s, known=known, found=found)
            code = 2
            try:
                os.chdir(ROOT)
                code = int(pytest.main([*OPTIONS, *tests], plugins=[trials]))
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != 0:
            raise SystemExit(f"no mutant was tried: pytest ended with {code}")
        for line in file.read().splitlines():
            number, *verdict = json.loads(line)
            yield faults[number], Verdict(*verdict)
