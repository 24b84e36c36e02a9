"""The Python examples of the documentation run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMBED = ROOT / "docs" / "embed.md"


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_the_launcher_in_the_embedding_page_runs_a_drain_to_its_end() -> None:
    (launcher,) = [code for code in _blocks(EMBED, "python") if "DrainMachine" in code]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", launcher], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "saving e000001-s000000000042-d1"
    assert done.stdout.splitlines()[1].startswith("exited with")


def test_the_scenario_in_the_embedding_page_holds() -> None:
    (scenario,) = [code for code in _blocks(EMBED, "python") if "Scenario(" in code]
    subprocess.run([sys.executable, "-W", "error", "-c", scenario], check=True)


@pytest.mark.parametrize("page", [ROOT / "README.md", EMBED], ids=lambda p: p.name)
def test_the_training_loop_is_the_same_in_every_page(page: Path) -> None:
    loops = [code for code in _blocks(page, "python") if "drainfsm.attach()" in code]
    (loop,) = [code for code in loops if "own_checkpoint" not in code]
    statements = [line.split("  #")[0].strip() for line in loop.splitlines()]
    wanted = [
        "session = drainfsm.attach()",
        "for step in range(checkpoint.restore(), steps):",
        "if checkpoint.step_done(step):",
        "session.close()",
    ]
    assert [line for line in statements if line in wanted] == wanted


PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_link_between_the_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"])
def test_every_file_that_a_page_for_developers_names_is_there(page: str) -> None:
    """Also those that are named from inside ``drainfsm/`` or ``drainfsm/runtime/``."""
    tops = (ROOT, ROOT / "drainfsm", ROOT / "drainfsm" / "runtime")
    for named in set(re.findall(r"`([\w./*-]+/[\w.*-]*)`", (ROOT / page).read_text())):
        assert any(list(top.glob(named.rstrip("/"))) for top in tops), f"{page}: {named}"


def test_every_decision_is_in_the_list_of_decisions() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\]\((\S+)\)", (folder / "README.md").read_text()))
    assert listed == {page.name for page in folder.glob("0*.md")}
