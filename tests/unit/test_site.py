"""The site: every command, key, event and error is in it, and what it loads is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from drainfsm.cli.main import COMMANDS
from drainfsm.cli.options import OPTIONS
from drainfsm.core.events import KINDS
from drainfsm_kit.site import build
from drainfsm_kit.site.pictures import PICTURES
from drainfsm_kit.site.reference import USAGE_ERRORS, reference_pages

ROOT = Path(__file__).parents[2]
REFERENCE = dict(reference_pages())


def test_the_reference_has_every_command_with_its_help() -> None:
    page = REFERENCE["cli.md"]
    assert [name for name in COMMANDS if f"## drainfsm {name}\n" not in page] == []
    assert "--require-durable-log" in page


def test_the_reference_has_every_key_with_its_default() -> None:
    page = REFERENCE["configuration.md"]
    assert [option.key for option in OPTIONS if f"| `{option.key}` |" not in page] == []
    assert (
        "| `exit_margin_ms` | `--exit-margin-ms MS` | `DRAINFSM_EXIT_MARGIN_MS` | `5000` |" in page
    )


def test_the_reference_has_every_event_with_its_fields() -> None:
    page = REFERENCE["events.md"]
    assert [kind for kind in KINDS if f"## `{kind}`" not in page] == []
    decided = page[page.index("## `save_decided`") :]
    assert "| `generation_id` | string |" in decided[: decided.index("\n## ")]


def test_the_reference_has_every_error_with_its_exit_code() -> None:
    page = REFERENCE["errors.md"]
    assert "| `ConfigError` | `DrainfsmError` | 2 |" in page
    assert "| `FencedError` | `StoreError` | 1 |" in page
    main = (ROOT / "drainfsm" / "cli" / "main.py").read_text()
    assert f"except ({', '.join(USAGE_ERRORS)})" in main, "these are the errors that exit with 2"


def test_pictures_show_what_the_code_decides() -> None:
    assert "9 s: skipped" in PICTURES["rule"]()
    assert "30 s: saved" in PICTURES["rule"]()
    assert "epoch 1 is fenced by epoch 2" in PICTURES["commit-log"]()
    assert "Commits" in PICTURES["proofs"]()


def test_every_page_of_the_documentation_is_in_the_navigation(tmp_path: Path) -> None:
    for name in ("embed", "brand-new"):
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / f"{name}.md").touch()
    settings: dict[str, Any] = yaml.safe_load(build.SETTINGS.read_text())
    named = list(build._named(build.navigation(settings["nav"], tmp_path)))
    assert "docs/brand-new.md" in named
    assert named.count("docs/embed.md") == 1
    assert build.REST not in named


def test_links_to_files_and_folders_of_the_repository_come_along(tmp_path: Path) -> None:
    build.stage(tmp_path)
    assert (tmp_path / "docs" / "images" / "serve-drain.png").exists()
    assert "deploy/grafana/" in (tmp_path / "docs" / "metrics.md").read_text()
    assert (tmp_path / "deploy" / "grafana" / "files.md").read_text().startswith("# deploy/grafana")
    assert (tmp_path / "deploy" / "grafana" / "alerts.yml").exists()


def test_packages_installed_beside_an_example_stay_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "repo" / "examples" / "dashboards" / "node_modules" / "somebodys"
    package.mkdir(parents=True)
    (package / "README.md").write_text("[nowhere](../missing.md)")
    (tmp_path / "repo" / "examples" / "README.md").write_text("# Examples")
    monkeypatch.setattr(build, "ROOT", tmp_path / "repo")
    build.stage(tmp_path / "staged")
    assert (tmp_path / "staged" / "examples" / "README.md").exists()
    assert not list((tmp_path / "staged").rglob("node_modules"))


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<img alt=x src=//images.example/a.png>",
        '<link rel="stylesheet" href="https://fonts.example/css">',
        "<link href='x' rel=preconnect href=https://fonts.example>",
        "body { background: url(https://images.example/a.png) }",
        '@import "https://fonts.example/css";',
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        f"<p><a href='https://example.org'>a link is fine</a>{text}"
    )
    assert len(list(build.loaded_from_elsewhere(tmp_path))) == 1
    (tmp_path / "page.html").write_text("<p><a href='https://example.org'>a link is fine</a>")
    assert list(build.loaded_from_elsewhere(tmp_path)) == []
