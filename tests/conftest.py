"""Servers that several tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from drainfsm.log.embedded import EmbeddedServer

settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")
"""How long an example takes says how busy the machine is."""

settings.register_profile("unshrunk", settings(), phases=(Phase.explicit, Phase.generate))
"""That something fails is all that ``tests/mutants/run.py`` wants to know."""


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One real nats-server for all tests: give every test jobs of its own name."""
    server = EmbeddedServer.start(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


@pytest.fixture
def own_nats_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A real nats-server with an empty store, for tests that kill it or spoil its stream."""
    server = EmbeddedServer.start(tmp_path / "nats")
    yield server
    server.kill()
