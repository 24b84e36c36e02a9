"""Programs of others that views are tested with: ``make view-tools`` installs them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

PROGRAMS = {"browser": "chromium", "promtool": "promtool"}
"""By marker: what a test so marked starts."""

NODE = "node"
EXAMPLES = Path(__file__).parents[2] / "examples" / "dashboards"


def _missing() -> dict[str, str]:
    found = {}
    if shutil.which(NODE) is None or not (EXAMPLES / "node_modules").is_dir():
        found[NODE] = "node with the packages of examples/dashboards"
    if os.environ.get("CI") == "true":  # there, the other tests must not go missing
        return found
    return found | {mark: name for mark, name in PROGRAMS.items() if shutil.which(name) is None}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = _missing()
    ours = [item for item in items if any(item.get_closest_marker(mark) for mark in missing)]
    if ours:
        items[:] = [item for item in items if item not in ours]
        config.hook.pytest_deselected(items=ours)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if missing := _missing():
        marks, names = ", ".join(missing), ", ".join(missing.values())
        terminalreporter.write_line(
            f"tests marked {marks} are left out: {names} missing; `make view-tools` (as root) "
            "installs what it can"
        )
