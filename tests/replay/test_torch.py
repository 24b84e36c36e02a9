"""Generations that torch wrote under earlier versions give what they gave then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drainfsm_kit.release.record import RESTORED, restored_from

VERSIONS = sorted((Path(__file__).parent / "torch").iterdir())


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_what_is_restored_is_what_was_restored_then(version: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchdata")
    found = json.loads(restored_from(version / "store", tmp_path / "job"))
    assert found == json.loads((version / RESTORED).read_text(encoding="utf-8"))
    assert found["epoch"] > 0
