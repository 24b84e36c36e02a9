"""The model, as TLC has it. Without Java its tests are left out with a message, not in CI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drainfsm_kit import tlc

MODELS = Path(__file__).parents[2] / "specs" / "models"


def _missing() -> str:
    try:
        tlc.jar()
    except tlc.TlcMissingError as error:
        return str(error)
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """CI has TLC, and must not pass without."""
    if os.environ.get("CI") == "true" or not _missing():
        return
    ours = [item for item in items if item.get_closest_marker("tlc")]
    if ours:
        items[:] = [item for item in items if item not in ours]
        config.hook.pytest_deselected(items=ours)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if (missing := _missing()) and os.environ.get("CI") != "true":
        terminalreporter.write_line(f"tests marked tlc are left out: {missing}")


@pytest.fixture(scope="session")
def models() -> Path:
    return MODELS
