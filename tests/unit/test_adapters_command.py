"""``drainfsm adapters``: what is installed, also by others, and what is wrong with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from drainfsm.adapter import AdapterContext, NoticeSource, adapter_names, load_adapter
from drainfsm.cli.adapters import METHODS
from drainfsm.cli.main import main

Output = pytest.CaptureFixture[str]

OTHERS = """
from drainfsm.adapter import NoticeSource

class Rack:
    def __init__(self, context): raise RuntimeError("must not be started")
    async def watch(self, sink): ...
    async def cordon(self, nodes, *, timeout_ms): ...

def factory(context) -> Rack: ...
def untold(context): ...
def dangling(context) -> "Nowhere": ...
"""


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of somebody else, as pip leaves it."""
    info = tmp_path / "rack_adapter-2.1.dist-info"
    info.mkdir()
    (tmp_path / "rack_adapter.py").write_text(OTHERS)
    (tmp_path / "broken_adapter.py").write_text("import nobody_has_this\n")
    (tmp_path / "exits_adapter.py").write_text("raise SystemError('\\x1b[2J no')\n")
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: rack-adapter\nVersion: 2.1\nProvides-Extra: broken\n"
    )
    points = {
        "rack": "rack_adapter:Rack",
        "rack-made": "rack_adapter:factory",
        "untold": "rack_adapter:untold",
        "dangling": "rack_adapter:dangling",
        "broken": "broken_adapter:adapter",
        "exits": "exits_adapter:adapter",
        "missing": "rack_adapter:nothing",
    }
    lines = "".join(f"{name} = {target}\n" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[drainfsm.adapters]\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of(name: str, capsys: Output) -> dict[str, object]:
    main(["adapters", "--json", name])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_every_adapter_of_ours_is_listed_with_what_it_can_do(capsys: Output) -> None:
    assert main(["adapters", "--json"]) == 0
    found = {one["name"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(found) == set(adapter_names())
    assert found["aws"]["can"] == ["watch"]
    assert found["command"]["can"] == ["cordon", "left"]
    assert found["slurm"]["can"] == ["watch", "interpret", "cordon", "left", "stay"]
    assert found["kubernetes"]["can"] == ["watch", "interpret", "cordon", "left", "show"]
    assert [name for name, one in found.items() if one["takes_machine"]] == ["auto", "azure"]


@pytest.mark.parametrize("name", ["aws", "auto", "azure", "gcp", "alibaba", "tencent"])
def test_what_is_listed_is_what_the_started_adapter_has(name: str, capsys: Output) -> None:
    context = AdapterContext(job_id="j", node_rank=0, node_count=1, grace_ms=1)
    started = load_adapter(name, context)
    assert isinstance(started, NoticeSource)
    assert of(name, capsys)["can"] == [one for one in METHODS if hasattr(started, one)]


def test_adapters_of_others_are_listed_and_not_started(others: Path, capsys: Output) -> None:
    assert of("rack", capsys)["can"] == ["watch", "cordon"]
    assert of("rack-made", capsys)["can"] == ["watch", "cordon"]
    assert main(["adapters", "untold", "dangling"]) == 0
    told = capsys.readouterr().out
    assert told.count("does not say before it is started") == 2
    assert "rack-adapter 2.1, rack_adapter:untold" in told


def test_what_cannot_be_imported_says_why_and_what_brings_it(others: Path, capsys: Output) -> None:
    assert main(["adapters"]) == 1, "the others are listed all the same"
    told = capsys.readouterr().out
    assert "No module named 'nobody_has_this' (pip install 'rack-adapter[broken]')" in told
    assert "cannot be imported: SystemError: \\x1b[2J no" in told
    assert "AttributeError" in told
    assert "hears notices" in told
    sys.modules.pop("rack_adapter", None)


def test_a_name_that_is_not_installed_is_answered_with_the_nearest(capsys: Output) -> None:
    assert main(["adapters", "kubernets"]) == 2
    assert "did you mean kubernetes?" in capsys.readouterr().err
