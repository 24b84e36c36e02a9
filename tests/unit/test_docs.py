"""The Python examples of the documentation run as they stand there."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

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


# --- what stands in fences ------------------------------------------------------------------------

FENCE = re.compile(r"^(```)(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _snippets() -> list[tuple[str, str, str]]:
    """Page, language and text of every fenced block."""
    return [
        (page.relative_to(ROOT).as_posix(), language, text)
        for page in PAGES
        for _, language, text in FENCE.findall(page.read_text(encoding="utf-8"))
    ]


def _is_shell(text: str) -> bool:
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    return done.returncode == 0


def _parses(language: str, text: str) -> object:
    """Raises, or is False, where the text is not of its language."""
    if language == "python":
        return ast.parse(text)
    if language in ("sh", "bash"):
        return _is_shell(text)
    if language == "toml":
        return tomllib.loads(text)
    if language == "json":
        return json.loads(text)
    if language == "yaml":
        return list(yaml.safe_load_all(text)) or True
    return True


def test_every_snippet_is_of_the_language_that_its_fence_names() -> None:
    snippets = _snippets()
    assert {language for _, language, _ in snippets} >= {"python", "bash", "toml", "yaml"}
    for page, language, text in snippets:
        assert _parses(language, text) is not False, f"{page}: {language}: {text[:200]}"


def test_every_snippet_that_says_what_it_is_written_in_is_looked_at() -> None:
    looked_at = {"python", "sh", "bash", "toml", "json", "yaml"}
    of_people = {"", "text", "diff", "js", "javascript", "promql", "ini"}
    others = {(page, language) for page, language, _ in _snippets()}
    assert {one for one in others if one[1] not in looked_at | of_people} == set()


def test_every_fragment_of_the_changelog_is_of_a_known_type_and_one_paragraph() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    types = {one["directory"] for one in project["tool"]["towncrier"]["type"]}
    folder = ROOT / project["tool"]["towncrier"]["directory"]
    for path in folder.iterdir():
        if path.name != "README.md":
            name, *kind = path.name.split(".")
            assert name, path.name
            assert len(kind) == 2, path.name
            assert kind[0] in types, path.name
            text = path.read_text(encoding="utf-8").strip()
            assert text, path.name
            assert "\n\n" not in text, f"{path.name}: one paragraph"


def test_no_page_has_the_marks_of_a_merge() -> None:
    for page in [*PAGES, *(ROOT / "changelog.d").iterdir()]:
        found = re.findall(r"^(?:<{7} |={7}$|>{7} ).*", page.read_text(), re.MULTILINE)
        assert found == [], f"{page.name}: {found}"
