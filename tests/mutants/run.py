"""Break the code on purpose, once for each fault, and see whether the tests notice.

    python tests/mutants/run.py [--jobs N] [--only TEXT]

Prints one line a fault and the score; exit code 1 if one survives.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults import CORE_TESTS, FAULTS, STORE_TESTS, Fault

ROOT = Path(__file__).parents[2]
COPIED = ("drainfsm", "adapters", "tests", "pyproject.toml", "docs", "README.md")
TEST_S_MAX = 600


def copy_tree() -> Path:
    target = Path(tempfile.mkdtemp(prefix="drainfsm-mutant-"))
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / name, ignore=ignore)
        elif source.exists():
            shutil.copy2(source, target / name)
    return target


def plant(fault: Fault, tree: Path) -> None:
    path = tree / fault.file
    text = path.read_text()
    count = text.count(fault.old)
    if count != 1:
        raise SystemExit(f"{fault.name}: its text is {count} times in {fault.file}, not once")
    path.write_text(text.replace(fault.old, fault.new))


def noticed(fault: Fault | None, tests: tuple[str, ...]) -> tuple[bool | None, str]:
    """Whether the tests fail with the fault planted (None: the code as it is), and which. No
    verdict where they came to no end: that says how busy the machine is."""
    tree = copy_tree()
    try:
        if fault is not None:
            plant(fault, tree)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["--hypothesis-profile", "unshrunk", *tests]
        done = subprocess.run(
            command,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": f"{tree}:{tree / 'adapters'}"},
            capture_output=True,
            text=True,
            timeout=TEST_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "timed out"
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 1, failed[0] if failed else done.stdout[-300:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tenth", type=int, help="only every tenth fault, from this one on")
    parser.add_argument("--only", default="", help="faults with this text in their file or name")
    options = parser.parse_args()
    broken, why = noticed(None, CORE_TESTS + STORE_TESTS)
    if broken:
        print(f"the tests fail without any fault: {why}")
        return 2
    chosen = [fault for fault in FAULTS if options.only in f"{fault.file} {fault.name}"]
    if options.tenth is not None:
        chosen = chosen[options.tenth % 10 :: 10]
    started = time.monotonic()
    survivors = []
    with ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda fault: noticed(fault, fault.tests), chosen)
        for fault, (killed, how) in zip(chosen, results, strict=True):
            if killed is None:
                killed, how = noticed(fault, fault.tests)
            verdict = "killed  " if killed else "SURVIVED"
            print(f"{verdict} {fault.name}  [{Path(fault.file).name}] {how[:110]}", flush=True)
            if not killed:
                survivors.append(fault)
    seconds = time.monotonic() - started
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} faults noticed in {seconds:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
