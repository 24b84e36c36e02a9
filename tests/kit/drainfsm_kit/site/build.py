"""Puts the pages together, with what is generated, and has MkDocs build them.

The pages lie in the site as they lie in the repository, so that a link between two of them is right
in both. What a page links to and is no page (a manifest, a picture) comes along.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from drainfsm_kit.site.pictures import PICTURES
from drainfsm_kit.site.reference import reference_pages

ROOT = Path(__file__).parents[4]
SETTINGS = ROOT / "docs" / "mkdocs.yml"
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs/**/*.md",
    "specs/*.md",
    "specs/lifecycle/*.md",
    "tests/README.md",
    "bench/README.md",
    "examples/*.md",  # not below: node_modules may lie there
)
LINK = re.compile(r"\]\(([^)#:\s]+)[^):]*\)")
REST = "…"
"""In the navigation: every page of docs/ that it names nowhere, so that a new one is not lost."""

LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)[^>]*\ssrc=["']?(https?:)?//"""
    r"""|<link[^>]*rel=["']?(?:stylesheet|preload|preconnect|icon|modulepreload)[^>]*href=["']?"""
    r"""(https?:)?//|url\(["']?(https?:)?//|@import\s+["'](https?:)?//""",
    re.IGNORECASE,
)


def build(output: Path) -> list[str]:
    """What is wrong with the site; empty: it is built."""
    staged = output.parent / "pages"
    shutil.rmtree(staged, ignore_errors=True)
    stage(staged)
    settings = output.parent / "mkdocs.yml"
    settings.write_text(yaml.safe_dump(settings_for(staged, output), allow_unicode=True))
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(settings)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(mkdocs, capture_output=True, text=True, check=False, env=quiet)
    if done.returncode:  # MkDocs says it on stderr, and `--quiet` would hide what is wrong
        return (done.stdout + done.stderr).splitlines()
    return list(loaded_from_elsewhere(output))


def stage(staged: Path) -> None:
    """Pages, what they link to, and the generated reference."""
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            _copy(path, staged)
    for name, text in reference_pages():
        target = staged / "docs" / "reference" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    images = staged / "docs" / "images"
    images.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (images / f"{name}.svg").write_text(draw(), encoding="utf-8")
    for page in sorted(staged.rglob("*.md")):
        _bring_along(page, staged)


def _bring_along(page: Path, staged: Path) -> None:
    """What the page links to. A folder gets a page of its own, with what is in it."""
    here = page.relative_to(staged).parent

    def linked(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(ROOT / here / found[1]))
        if not target.is_relative_to(ROOT):
            return found[0]
        if target.is_file():
            _copy(target, staged)
        elif target.is_dir():
            return found[0].replace(found[1], f"{found[1].rstrip('/')}/{_listed(target, staged)}")
        return found[0]

    text = page.read_text(encoding="utf-8")
    page.write_text(LINK.sub(linked, text), encoding="utf-8")


def _copy(path: Path, staged: Path) -> None:
    target = staged / path.relative_to(ROOT)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _listed(folder: Path, staged: Path) -> str:
    """Name of the folder's page."""
    name = folder.relative_to(ROOT)
    if (staged / name / "README.md").exists():
        return "README.md"
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix != ".md")
    for path in files:
        _copy(path, staged)
    lines = "".join(f"- [{path.name}]({path.name})\n" for path in files)
    (staged / name / "files.md").write_text(f"# {name}\n\n{lines}", encoding="utf-8")
    return "files.md"


def settings_for(staged: Path, output: Path) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    settings |= {"docs_dir": str(staged), "site_dir": str(output)}
    settings["nav"] = navigation(settings["nav"], staged)
    return settings


def navigation(nav: list[Any], staged: Path) -> list[Any]:
    """``REST`` is replaced; pages that are not there are an error of MkDocs."""
    named = set(_named(nav))
    pages = (path.relative_to(staged).as_posix() for path in (staged / "docs").glob("*.md"))
    rest = sorted(page for page in pages if page not in named)
    return [_with_rest(entry, rest) for entry in nav]


def _with_rest(entry: Any, rest: list[str]) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, inside),) = entry.items()
    if isinstance(inside, list):
        filled = [one for part in inside for one in (rest if part == REST else [part])]
        return {title: [_with_rest(part, rest) for part in filled]}
    return entry


def _named(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for inside in nav.values():
            yield from _named(inside)
    else:
        for entry in nav:
            yield from _named(entry)


def loaded_from_elsewhere(output: Path) -> Iterator[str]:
    """A page that is read tells nobody: everything that it loads is of the site."""
    for path in sorted(output.rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8", errors="replace")
            for found in LOADS.finditer(text):
                shown = text[found.start() : found.start() + 120]
                yield f"{path.relative_to(output)}: loads from elsewhere: {shown}"
