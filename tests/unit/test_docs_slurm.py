"""The page about Slurm shows the scripts that the tests submit, and every option."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainfsm_adapters.slurm_options import SlurmOptions

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "deploy" / "slurm").glob("*.sbatch"))
PAGE = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_page_shows_the_script_as_it_is(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert f"`deploy/slurm/{script.name}`\n\n```bash\n{text}```\n" in PAGE


def test_there_are_scripts() -> None:
    assert {path.stem for path in SCRIPTS} >= {"one-node", "several-nodes", "torchrun", "array"}


@pytest.mark.parametrize("option", SlurmOptions.__struct_fields__)
def test_the_page_shows_the_option(option: str) -> None:
    assert f"\n{option} = " in PAGE
