"""Import, --help, the size of the wheel, and installing it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Case, Size, Topic, at_most, wall_s

ROOT = Path(__file__).parents[1]


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    cases: dict[str, Case] = {
        "python -c pass": lambda: _python("pass"),
        "import drainfsm": lambda: _python("import drainfsm"),
        "import transitions": lambda: _python("import transitions"),
        "import nats": lambda: _python("import nats"),
        "drainfsm --help": lambda: _run("-m", "drainfsm", "--help"),
        "drainfsm run --help": lambda: _run("-m", "drainfsm", "run", "--help"),
    }
    if size.quick:
        yield cases
        return
    with tempfile.TemporaryDirectory() as directory:
        wheel = _wheel(Path(directory))
        cases["the wheel, KiB"] = lambda: wheel.stat().st_size / 1024
        cases["pip install of the wheel, without dependencies"] = lambda: _install(wheel)
        yield cases


def _python(code: str) -> float:
    return _run("-c", code)


def _run(*arguments: str) -> float:
    command = [sys.executable, *arguments]
    return wall_s(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def _wheel(directory: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run([*command, str(directory), str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    return next(directory.glob("*.whl"))


def _install(wheel: Path) -> float:
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=False)
        python = str(Path(directory) / "bin/python")
        command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
        command += ["--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
        return wall_s(lambda: subprocess.run(command, check=True))


TOPIC = Topic(
    name="startup",
    title="Import, help, wheel, installation",
    unit="s",
    note="Wall time of whole processes.",
    open=opened,
    ratios=(
        at_most("START", "import drainfsm, beside a bare interpreter (floor)",
                "import drainfsm", "python -c pass", goal=3, gate=3.2),
        at_most("START", "import drainfsm, beside import nats", "import drainfsm", "import nats"),
        at_most("START", "drainfsm --help, beside a bare interpreter (floor)",
                "drainfsm --help", "python -c pass", goal=4, gate=3.8),
    ),
)  # fmt: skip
