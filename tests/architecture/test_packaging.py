"""What a user installs, and what the repository promises about itself."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from drainfsm.adapter import GROUP, adapter_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = directory.glob("*.whl")
    return zipfile.ZipFile(path)


def project() -> dict[str, Any]:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, Any] = document["project"]
    return table


def test_the_wheel_takes_only_our_own_import_names(wheel: zipfile.ZipFile) -> None:
    tops = {Path(name).parts[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "drainfsm",
        "drainfsm_adapters",
    }


def test_the_wheel_holds_every_module_and_is_typed(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    for root, package in ((ROOT, "drainfsm"), (ROOT / "adapters", "drainfsm_adapters")):
        for path in (root / package).rglob("*.py"):
            assert path.relative_to(root).as_posix() in held
        assert f"{package}/py.typed" in held


def test_the_wheel_holds_what_browsers_load(wheel: zipfile.ZipFile) -> None:
    static = "drainfsm/views/serve/static"
    held = {name for name in wheel.namelist() if name.startswith(static)}
    assert held == {f"{static}/{path.name}" for path in (ROOT / static).iterdir()}


def test_the_wheel_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_every_adapter_that_is_named_can_be_loaded() -> None:
    named = project()["entry-points"][GROUP]
    assert set(named) == set(adapter_names())
    for point in entry_points(group=GROUP):
        assert callable(point.load())


def test_the_console_script_is_there() -> None:
    script = Path(sys.executable).with_name("drainfsm")
    done = subprocess.run([str(script), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"drainfsm {project()['version']}"


def test_the_constraints_pin_what_the_project_asks_for() -> None:
    pins = {
        line.partition("==")[0]
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    }
    table = project()
    asked = {"": table["dependencies"]} | table["optional-dependencies"]
    names = {_name(requirement) for extra in asked.values() for requirement in extra}
    assert names - {"drainfsm"} == pins


def test_ranks_are_given_what_torchs_collectives_need() -> None:
    """torch does not ask for numpy itself, and cannot gather an object without it: no save."""
    assert "numpy" in {_name(one) for one in project()["optional-dependencies"]["torch"]}


def _name(requirement: str) -> str:
    end = min((requirement.find(c) for c in "[=<>!~ " if c in requirement), default=None)
    return requirement[:end]


def test_every_test_directory_says_what_it_is_for() -> None:
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    for directory in (ROOT / "tests").iterdir():
        if directory.is_dir() and any(directory.glob("**/test_*.py")):
            assert f"`{directory.name}/`" in text
