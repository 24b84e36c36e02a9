"""Jobs of the frameworks, with the real agent and an embedded NATS server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drainfsm_kit.framework_contract import PATIENCE_S
from drainfsm_kit.running import RunningJob, running_job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunningJob]:
    with running_job(tmp_path, nats="", wait_s=PATIENCE_S) as running:
        yield running
