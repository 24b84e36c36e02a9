"""Break the code on purpose, once for each fault, and see whether the tests notice.

    python tests/mutants/run.py [--jobs N] [--only TEXT] [--tenth N]

Prints one line a fault, and a table by module; exit code 1 if one survives. Tests that come to no
end in their time are no verdict: the fault is tried again when nothing else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from fault import Fault
from faults import FAULTS

ROOT = Path(__file__).parents[2]
COPIED = ("drainfsm", "adapters", "tests", "specs", "pyproject.toml", "docs", "README.md")
TEST_S_MAX = 300
ALONE_S_MAX = 900
"""For what had no verdict: on a machine that others keep busy, the tests may need that long."""

CLEAN_S_MAX = 3_600
"""All of the tests, one after another, on a machine that is busy."""

KILLED, SURVIVED, NO_VERDICT = "killed", "SURVIVED", "NO VERDICT"
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/(\w+)/\S+)", re.MULTILINE)
PASSED = 0
OPTIONS = (
    *("-x", "-q", "-p", "no:cacheprovider", "--timeout", "0", "--hypothesis-profile", "unshrunk"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)

HEAVY = (
    "hypothesis.stateful",
    "moto.server",
    "nats",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "transitions",
)
"""What the tests import, for most of their time. It is imported once; each fault's tests run in a
fork, which imports nothing but the code with the fault."""


class Verdict(NamedTuple):
    what: str
    by: str
    """The test that noticed it."""

    kind: str
    """Its directory."""

    seconds: float


class Tree:
    """A copy of the code, in which one fault at a time is planted."""

    def __init__(self) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="drainfsm-mutant-"))
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, self.top / name, ignore=ignore)
            else:
                shutil.copy2(source, self.top / name)

    def remove(self) -> None:
        shutil.rmtree(self.top, ignore_errors=True)

    @contextmanager
    def planted(self, fault: Fault | None) -> Iterator[None]:
        if fault is None:
            yield
            return
        path = self.top / fault.file
        text = path.read_text()
        if (count := text.count(fault.old)) != 1:
            raise SystemExit(f"{fault.name}: its text is {count} times in {fault.file}, not once")
        compiled = Path(importlib.util.cache_from_source(str(path)))
        path.write_text(text.replace(fault.old, fault.new))
        compiled.unlink(missing_ok=True)
        try:
            yield
        finally:
            path.write_text(text)
            compiled.unlink(missing_ok=True)


class Trial:
    """The tests on the code with a fault (None: on the code as it is), in a process of their own,
    which a signal ends when its time is up."""

    def __init__(
        self, tree: Tree, fault: Fault | None, tests: Sequence[str], *, seconds_max: int
    ) -> None:
        self.fault = fault
        self.tree = tree
        self._planted = tree.planted(fault)
        self._planted.__enter__()
        self._output = tree.top / "output"
        self._began = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            signal.alarm(seconds_max)
            said = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for fd in (1, 2):
                os.dup2(said, fd)
            os._exit(_run(tree.top, tests))

    def verdict(self, status: int) -> Verdict:
        """``status``: as ``os.wait`` gave it."""
        seconds = time.monotonic() - self._began
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # what the tests had started
        self._planted.__exit__(None, None, None)
        said = self._output.read_text(errors="replace")
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGALRM:
            return Verdict(NO_VERDICT, "", "", seconds)
        if code == PASSED:
            return Verdict(SURVIVED, "", "", seconds)
        found = FAILED.search(said)
        if found is None:
            return Verdict(NO_VERDICT, f"exit code {code}: {said[-200:]}", "", seconds)
        return Verdict(KILLED, found[1], found[2], seconds)


def _run(top: Path, tests: Sequence[str]) -> int:
    """In the fork: never returns into the code that it was forked from."""
    try:
        os.chdir(top)
        paths = [str(top), str(top / "adapters"), str(top / "tests" / "kit")]
        sys.path[:0] = paths
        os.environ["PYTHONPATH"] = ":".join(paths)
        for test in tests:  # one by one: most faults fail in the first, and the rest is not read
            code = int(pytest.main([*OPTIONS, test]))
            if code != PASSED:
                return code
        return PASSED
    except BaseException as error:
        print(f"{error!r}")
        return 2
    finally:
        sys.stdout.flush()


def judge(
    faults: Sequence[Fault], *, jobs: int, seconds_max: int = TEST_S_MAX
) -> dict[Fault, Verdict]:
    free = [Tree() for _ in range(jobs)]
    trees, waiting = tuple(free), deque(faults)
    running: dict[int, Trial] = {}
    found: dict[Fault, Verdict] = {}
    try:
        while waiting or running:
            while waiting and free:
                fault = waiting.popleft()
                trial = Trial(free.pop(), fault, fault.tests, seconds_max=seconds_max)
                running[trial.pid] = trial
            pid, status = os.wait()
            if (trial := running.pop(pid)) and trial.fault is not None:
                found[trial.fault] = trial.verdict(status)
                free.append(trial.tree)
                say(trial.fault, found[trial.fault])
    finally:
        for tree in trees:
            tree.remove()
    return found


def say(fault: Fault, verdict: Verdict) -> None:
    place = f"{fault.name}  [{fault.file.removeprefix('drainfsm/')}]"
    print(f"{verdict.what:10} {verdict.seconds:5.1f} s  {place} {verdict.by[:110]}", flush=True)


def report(found: dict[Fault, Verdict]) -> None:
    print("\nmodule                 faults noticed  by which tests")
    for module in sorted({fault.module for fault in found}):
        of_module = [verdict for fault, verdict in found.items() if fault.module == module]
        kinds = Counter(verdict.kind for verdict in of_module if verdict.what == KILLED)
        by = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        print(f"{module:22} {len(of_module):6} {kinds.total():7}  {by}")
    counts = Counter(verdict.what for verdict in found.values())
    print(f"{counts[KILLED]} of {len(found)} faults noticed; {counts[NO_VERDICT]} without verdict")


def clean(faults: Sequence[Fault]) -> bool:
    """The tests pass without any fault."""
    tree = Tree()
    try:
        tests = sorted({test for fault in faults for test in fault.tests})
        trial = Trial(tree, None, tests, seconds_max=CLEAN_S_MAX)
        verdict = trial.verdict(os.waitpid(trial.pid, 0)[1])
    finally:
        tree.remove()
    if verdict.what != SURVIVED:
        print(f"without any fault: {verdict.what} {verdict.by}")
    return verdict.what == SURVIVED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--tenth",
        type=int,
        help="only every tenth fault, from this one on; the tests are taken to pass without one",
    )
    parser.add_argument("--only", default="", help="faults with this text in their file or name")
    parser.add_argument(
        "--unchecked", action="store_true", help="the tests are taken to pass without a fault"
    )
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS if options.only in f"{fault.file} {fault.name}"]
    began = time.monotonic()
    for name in HEAVY:
        importlib.import_module(name)
    if options.tenth is not None:
        chosen = chosen[options.tenth % 10 :: 10]
    elif not options.unchecked and not clean(chosen):
        return 2
    found = judge(chosen, jobs=options.jobs)
    again = [fault for fault, verdict in found.items() if verdict.what == NO_VERDICT]
    found |= judge(again, jobs=1, seconds_max=ALONE_S_MAX)
    report(found)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if any(verdict.what != KILLED for verdict in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
