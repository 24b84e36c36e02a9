"""``drainfsm stream`` and ``--require-durable-log``: what a real server does, and who is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drainfsm.cli.main import main
from drainfsm.errors import BrokerError, ConfigError
from drainfsm.log import connect
from drainfsm.runtime.agent.host_machine import HostMachine
from drainfsm.runtime.config import RunConfig
from drainfsm_kit.agent_process import free_port
from drainfsm_kit.logs import records_of
from drainfsm_kit.nats_servers import nats_server

Output = pytest.CaptureFixture[str]


class Place:
    """A server, and its monitoring port."""

    def __init__(self, address: str, monitor: str) -> None:
        self.url = f"nats://{address}"
        self.monitor = monitor


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """By default it syncs now and then; with a parameter as that says."""
    port = free_port()
    jetstream = {"store_dir": str(tmp_path / "store"), **getattr(request, "param", {})}
    config = {"http": f"127.0.0.1:{port}", "jetstream": jetstream}
    with nats_server(tmp_path / "server", config) as address:
        yield Place(address, f"http://127.0.0.1:{port}")


ALWAYS = pytest.mark.parametrize("place", [{"sync_interval": "always"}], indirect=True)


def told(capsys: Output, *argv: str) -> tuple[int, dict[str, Any]]:
    code = main(["stream", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_stream_is_made_once_and_its_risks_are_told(place: Place, capsys: Output) -> None:
    code, found = told(capsys, "init", "--nats", place.url, "--max-bytes", "1000000")
    assert (code, found["created"]) == (0, True)
    assert found["sync"] == ""
    assert "power cut" in found["risks"][0]
    assert found["max_bytes"] == 1_000_000
    code, found = told(capsys, "init", "--nats", place.url)
    assert (code, found["created"], found["max_bytes"]) == (0, False, 1_000_000)


def test_records_may_go_by_age_but_not_within_days(place: Place, capsys: Output) -> None:
    assert main(["stream", "init", "--nats", place.url, "--max-age-days", "6"]) == 2
    assert "at least 7" in capsys.readouterr().err
    code, found = told(capsys, "init", "--nats", place.url, "--max-age-days", "30")
    assert (code, found["max_age_days"], found["wrong"]) == (0, 30, "")

    async def as_an_agent() -> int:
        connection = await connect(place.url, timeout_s=30)
        try:
            await connection.ensure_stream()
            return connection.forgets_after_ms
        finally:
            await connection.close()

    assert asyncio.run(as_an_agent()) == 30 * 86_400_000


@ALWAYS
def test_a_server_that_syncs_first_is_found_out_and_agents_read_it(
    place: Place, capsys: Output
) -> None:
    code, found = told(capsys, "init", "--nats", place.url, "--monitor", place.monitor)
    assert (code, found["sync"], found["risks"]) == (0, "always", [])
    code, found = told(capsys, "check", "--nats", place.url)
    assert (code, found["sync"]) == (0, "always")

    async def warnings() -> list[str]:
        connection = await connect(place.url, timeout_s=30)
        try:
            return await connection.ensure_stream()
        finally:
            await connection.close()

    assert asyncio.run(warnings()) == []


def test_a_server_that_syncs_seldom_says_how_often(place: Place, capsys: Output) -> None:
    assert main(["stream", "init", "--nats", place.url]) == 0
    capsys.readouterr()
    code, found = told(capsys, "check", "--nats", place.url, "--monitor", place.monitor)
    assert (code, found["sync"]) == (1, "120 s")
    assert "syncs only every 120 s" in found["risks"][0]
    assert main(["stream", "check", "--nats", place.url]) == 1, "check leaves no note"
    assert "not known" in capsys.readouterr().out


@ALWAYS
def test_a_note_is_corrected_when_the_server_has_changed(place: Place, capsys: Output) -> None:
    assert main(["stream", "init", "--nats", place.url]) == 0
    assert main(["stream", "init", "--nats", place.url, "--monitor", place.monitor]) == 0
    capsys.readouterr()
    code, found = told(capsys, "check", "--nats", place.url)
    assert (code, found["sync"], found["wrong"]) == (0, "always", "")


def test_too_few_replicas_and_a_foreign_stream_are_named(place: Place, capsys: Output) -> None:
    assert main(["stream", "check", "--nats", place.url]) == 1
    assert "stream not found" in capsys.readouterr().err
    assert main(["stream", "init", "--nats", place.url]) == 0
    assert main(["stream", "check", "--nats", place.url, "--replicas", "3"]) == 1
    assert "num_replicas is 1, not 3" in capsys.readouterr().err


@ALWAYS
def test_a_stream_that_is_nearly_full_is_told_before_it_refuses(
    place: Place, capsys: Output
) -> None:
    argv = ["--nats", place.url, "--max-bytes", "4000", "--monitor", place.monitor]
    assert main(["stream", "init", *argv]) == 0

    async def fill() -> list[str]:
        connection = await connect(place.url, timeout_s=30)
        after = 0
        for record in records_of("job", 12):
            after = await connection.append(record, after_sequence=after)
        warnings = await connection.ensure_stream()
        await connection.close()
        return warnings

    (warning,) = asyncio.run(fill())
    assert "nearly full" in warning
    assert main(["stream", "check", "--nats", place.url]) == 1
    assert "raise max_bytes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("monitor", "problem"),
    [("http://127.0.0.1:1", "refused"), ("file:///etc/passwd", "begins neither with http")],
)
def test_a_monitoring_port_that_does_not_answer_is_named(
    place: Place, capsys: Output, monitor: str, problem: str
) -> None:
    assert main(["stream", "check", "--nats", place.url, "--monitor", monitor]) == 1
    assert problem in capsys.readouterr().err


Check = Callable[[str], None]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Of an agent that was told to require a durable log, before its claim."""

    def check_log(url: str) -> None:
        config = RunConfig(
            job="job",
            store=str(tmp_path / "ckpt"),
            command=("true",),
            nats=url,
            state_dir=tmp_path / "state",
            require_durable_log=True,
        )
        asyncio.run(HostMachine(config, others=set(), warn=print).check_log())

    return check_log


def test_an_agent_refuses_a_log_that_may_lose_records(place: Place, check: Check) -> None:
    with pytest.raises(ConfigError, match=r"require_durable_log: stream .* 1 replica"):
        check(place.url)
    with pytest.raises(BrokerError):
        check("nats://127.0.0.1:1")


@ALWAYS
def test_an_agent_takes_a_log_that_an_administrator_has_found_durable(
    place: Place, check: Check
) -> None:
    main(["stream", "init", "--nats", place.url, "--monitor", place.monitor])
    check(place.url)
