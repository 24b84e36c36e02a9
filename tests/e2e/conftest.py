"""Jobs that run for real, with toy ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drainfsm_kit.running import RunningJob, running_job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunningJob]:
    """One node."""
    with running_job(tmp_path) as running:
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[RunningJob]:
    """Two nodes on this machine."""
    with running_job(tmp_path, nnodes=2) as running:
        yield running
