"""Servers that several tests share, and which tests share a worker."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from drainfsm.log.embedded import EmbeddedServer

PROGRESS_S = 30.0

settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")
"""How long an example takes says how busy the machine is."""

settings.register_profile(
    "unshrunk", settings(), phases=(Phase.explicit, Phase.generate), database=None
)
"""That something fails is all that ``tests/mutants/run.py`` wants to know."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests share a worker, and so do all that want a Slurm cluster: two clusters would
    give the same ids, and so the same ports, to their jobs. A framework's tests of one sharding
    share what they compare with, and the frameworks run beside each other."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/frameworks/"):
                return "-".join(nodeid.removesuffix("]").rpartition("[")[2].split("-")[-2:])
            slurm = nodeid.startswith("tests/slurm/")
            return "tests/slurm" if slurm else super()._split_scope(nodeid)

    return Scheduling(config, log)


class Progress:
    """Says what fails when it fails, and every half minute how far the tests are."""

    def __init__(self, config: pytest.Config) -> None:
        self._terminal = config.pluginmanager.getplugin("terminalreporter")
        self._done = self._failed = 0
        self._told_s = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._done += report.when == "teardown"
        if report.failed:
            self._failed += 1
            self._say(f"FAILED {report.nodeid} ({report.when})")
        elif time.monotonic() - self._told_s > PROGRESS_S:
            self._say(f"{self._done} tests done, {self._failed} failed")

    def _say(self, line: str) -> None:
        self._told_s = time.monotonic()
        self._terminal.ensure_newline()
        self._terminal.write_line(f"{time.strftime('%H:%M:%S')} {line}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Jobs hear what a shell would let them hear, though the tests were started by ``nohup`` or
    in the background of a script.

    Progress is not told by the workers of xdist: they have no terminal."""
    for ignored in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.pluginmanager.hasplugin("terminalreporter") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config), "drainfsm-progress")


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
