"""Servers that several tests share, and which tests share a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drainfsm.log.embedded import EmbeddedServer


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers (``-n``): a module's tests share one, for what they set up together;
    so do all that want a Slurm cluster, and all in the group of those that keep every core busy."""
    for item in items:
        group = "slurm" if item.get_closest_marker("slurm") else item.path.stem
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))


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
