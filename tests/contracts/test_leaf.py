"""The log by way of a leaf node: agents know the server beside them, the stream is in the hub."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drainfsm.core.records import Record
from drainfsm.errors import BrokerError
from drainfsm.log import connect
from drainfsm.log.journal import Journal, journal_path
from drainfsm.log.shipper import Shipper
from drainfsm_kit.agent_process import free_port
from drainfsm_kit.logs import records_of
from drainfsm_kit.nats_servers import nats_server

JOB, LONG_MS = "job", 60_000


def users(name: str) -> dict[str, Any]:
    return {name: {"users": [{"user": "me", "password": "me"}]}}


class Site:
    """A hub, and a leaf node without streams of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._hub = contextlib.ExitStack()
        self.hub_url = ""

    def start_hub(self) -> None:
        accounts = users("LOG")
        accounts["LOG"]["jetstream"] = "enabled"
        config = {
            "server_name": "hub",
            "accounts": accounts,
            "leafnodes": {"listen": f"127.0.0.1:{self._port}"},
            "jetstream": {"store_dir": str(self._directory / "store"), "domain": "hub"},
        }
        address = self._hub.enter_context(nats_server(self._directory / "hub", config))
        self.hub_url = f"nats://me:me@{address}"

    def stop_hub(self) -> None:
        self._hub.close()

    @contextlib.contextmanager
    def leaf(self) -> Iterator[str]:
        remote = {"url": f"nats://me:me@127.0.0.1:{self._port}", "account": "LOG"}
        config = {
            "server_name": "leaf",
            "accounts": users("LOG"),
            "leafnodes": {"remotes": [remote], "reconnect": 1},
            "default_js_domain": {"LOG": "hub"},
            "jetstream": None,
        }
        with nats_server(self._directory / "leaf", config) as address:
            yield f"nats://me:me@{address}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    found.start_hub()
    yield found
    found.stop_hub()


async def stored(url: str) -> list[Record]:
    connection = await connect(url, timeout_s=30)
    try:
        return list(await connection.read_job(JOB))
    except BrokerError:
        return []
    finally:
        await connection.close()


def test_records_pass_a_leaf_node_and_wait_while_it_is_cut_off(site: Site, tmp_path: Path) -> None:
    records, told = records_of(JOB, 5), list[str]()

    async def scene(leaf_url: str, journal: Journal) -> None:
        shipper = Shipper(
            server=leaf_url, state_dir=tmp_path / "state", job_id=JOB, on_error=told.append
        )
        shipper.attach(journal)
        await shipper.start()
        assert await shipper.flush(timeout_ms=LONG_MS)
        assert await stored(site.hub_url) == records[:3]
        assert await stored(leaf_url) == records[:3]
        site.stop_hub()
        journal.append(*records[3:])
        shipper.poke()
        while not any("nobody answers" in text or "no answer" in text for text in told):
            await asyncio.sleep(0.05)
        site.start_hub()
        assert await shipper.flush(timeout_ms=LONG_MS)
        assert await stored(site.hub_url) == records
        await shipper.close(timeout_ms=5_000)

    path = journal_path(tmp_path / "state", job_id=JOB, epoch=1)
    with (
        site.leaf() as leaf_url,
        contextlib.closing(Journal.open(path, job_id=JOB, epoch=1)) as journal,
    ):
        journal.append(*records[:3])
        asyncio.run(scene(leaf_url, journal))
