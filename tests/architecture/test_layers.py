"""Who imports whom: the contracts of pyproject.toml, and what a fresh interpreter really loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CORE_MAY_IMPORT = {
    "__future__", "bisect", "collections", "drainfsm", "enum", "functools", "hashlib", "itertools",
    "math", "msgspec", "operator", "re", "typing",
}  # fmt: skip


def test_every_import_contract_is_kept() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint), "--no-logo", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_imports_nothing_but_pure_modules() -> None:
    imported = {
        (path.name, name)
        for path in sorted((ROOT / "drainfsm" / "core").glob("*.py"))
        for name in _imports(path)
    }
    assert {name for _, name in imported} <= CORE_MAY_IMPORT, imported
    assert "msgspec" in {name for _, name in imported}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def loaded_by(code: str) -> set[str]:
    """Top-level modules, and those of drainfsm in full, that a fresh interpreter has loaded."""
    script = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = done.stderr.splitlines()[-1].split()
    return {name for name in names if "." not in name or name.startswith("drainfsm")}


@pytest.mark.parametrize("heavy", ["asyncio", "nats", "obstore", "rich", "torch", "transitions"])
def test_importing_drainfsm_is_light(heavy: str) -> None:
    assert heavy not in loaded_by("import drainfsm")


def test_help_loads_no_command_and_not_even_msgspec() -> None:
    loaded = loaded_by("from drainfsm.cli.main import main\nmain(['--help'])")
    ours = {name for name in loaded if name.startswith("drainfsm")}
    light = {"drainfsm", "drainfsm.errors", "drainfsm.lazy"}
    assert ours == light | {"drainfsm.cli", "drainfsm.cli.main"}
    assert not loaded & {"argparse", "asyncio", "msgspec", "nats", "torch", "rich"}


@pytest.mark.parametrize("command", ["run", "notify", "replay", "explain", "export", "demo"])
def test_the_help_of_a_command_loads_nothing_that_is_slow(command: str) -> None:
    call = f"main([{command!r}, '--help'])"
    code = f"from drainfsm.cli.main import main\ntry: {call}\nexcept SystemExit: pass"
    loaded = loaded_by(code)
    assert "argparse" in loaded
    assert not loaded & {"asyncio", "nats", "obstore", "rich", "torch", "transitions"}


def test_replaying_a_file_loads_no_network_client() -> None:
    call = "main(['replay', '--file', '/dev/null'])"
    loaded = loaded_by(f"from drainfsm.cli.main import main\n{call}")
    assert "drainfsm.views.replay" in loaded
    assert not loaded & {"nats", "obstore", "rich", "torch"}


@pytest.mark.parametrize("module", ["drainfsm.runtime.rank.session", "drainfsm.checkpoint"])
def test_a_rank_loads_no_broker_client(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert module in loaded
    assert not loaded & {"nats", "transitions", "rich"}
    assert not {name for name in loaded if name.startswith(("drainfsm.log", "drainfsm.cli"))}
