"""What becomes of an attempt's records while its server is in trouble of a rarer kind: told, none
lost, none twice. The table of docs/nats.md has the counts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drainfsm.core.records import Record
from drainfsm.log import Connection, NatsServer, connect
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.journal import Journal, journal_path
from drainfsm.log.shipper import Shipper
from drainfsm.log.stream import STREAM
from drainfsm_kit.agent_process import free_port
from drainfsm_kit.logs import Proxy, records_of
from drainfsm_kit.nats_servers import certificate, nats_server

JOB, LONG_MS, WAIT_S = "job", 90_000, 90.0


class Attempt:
    """Writes its journal, and ships it."""

    def __init__(self, journal: Journal, shipper: Shipper, told: list[str]) -> None:
        self.shipper = shipper
        self.told = told
        self._journal = journal

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            self._journal.append(record)
            self.shipper.poke()

    async def hears(self, *texts: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while not any(text in line for line in self.told for text in texts):
                await asyncio.sleep(0.05)

    async def ships_all(self) -> None:
        assert await self.shipper.flush(timeout_ms=LONG_MS), self.told


@contextlib.asynccontextmanager
async def attempt(server: NatsServer | str, state_dir: Path) -> AsyncIterator[Attempt]:
    told: list[str] = []
    shipper = Shipper(server=server, state_dir=state_dir, job_id=JOB, on_error=told.append)
    path = journal_path(state_dir, job_id=JOB, epoch=1)
    with contextlib.closing(Journal.open(path, job_id=JOB, epoch=1)) as journal:
        shipper.attach(journal)
        await shipper.start()
        try:
            yield Attempt(journal, shipper, told)
        finally:
            await shipper.close(timeout_ms=5_000)


@contextlib.asynccontextmanager
async def connected(server: NatsServer | str) -> AsyncIterator[Connection]:
    connection = await connect(server, timeout_s=30)
    try:
        yield connection
    finally:
        await connection.close()


async def all_once(server: NatsServer | str, written: Sequence[Record]) -> None:
    async with connected(server) as connection:
        found = await connection.read_job(JOB)
    counted = Counter(record.id for record in found)
    twice = [name for name, count in counted.items() if count > 1]
    lost = [record.id for record in written if record.id not in counted]
    assert (len(found), twice, lost) == (len(written), [], [])
    assert found == list(written)


def test_a_server_that_stands_still_again_and_again(
    own_nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    """As one does whose disk is slow: it answers after seconds, or after the client gave up."""
    records = records_of(JOB, 60)

    async def scene() -> None:
        async with attempt(own_nats_server.url, tmp_path) as writer:
            writer.write(records[:2])
            await writer.ships_all()
            for number, still_s in enumerate((0.5, 2.0, 6.0)):
                os.kill(own_nats_server.pid, signal.SIGSTOP)
                writer.write(records[2 + number * 10 : 12 + number * 10])
                await asyncio.sleep(still_s)
                os.kill(own_nats_server.pid, signal.SIGCONT)
                await asyncio.sleep(0.5)
            writer.write(records[32:])
            await writer.ships_all()
            await all_once(own_nats_server.url, records)

    asyncio.run(scene())


def test_a_server_whose_disk_is_full_gets_everything_once_there_is_room(tmp_path: Path) -> None:
    padded = [replace(record, id=f"{record.id}-{'x' * 4_000}") for record in records_of(JOB, 400)]
    port = free_port()

    def config(room: int) -> dict[str, Any]:
        store = {"store_dir": str(tmp_path / "store"), "max_file_store": room}
        return {"listen": f"127.0.0.1:{port}", "jetstream": store}

    async def scene() -> None:
        url = f"nats://127.0.0.1:{port}"
        with contextlib.ExitStack() as running:
            running.enter_context(nats_server(tmp_path / "server", config(1 << 20)))
            async with attempt(url, tmp_path / "state") as writer:
                writer.write(padded)
                await writer.hears("refused record", "insufficient", "resource")
                assert not await writer.shipper.flush(timeout_ms=2_000)
                running.close()
                running.enter_context(nats_server(tmp_path / "server", config(1 << 26)))
                await writer.ships_all()
                await all_once(url, padded)

    asyncio.run(scene())


def test_a_foreign_stream_over_the_same_subjects_is_told(
    own_nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Records would be acknowledged by it, and no reader would find them."""
    records, url = records_of(JOB, 5), own_nats_server.url

    async def scene() -> None:
        async with connected(url) as connection:
            jetstream = connection.link.client.jetstream()
            await jetstream.add_stream(name="EVERYTHING", subjects=["drainfsm.>"])
            async with attempt(url, tmp_path) as writer:
                writer.write(records)
                await writer.hears("overlap")
                assert not await writer.shipper.flush(timeout_ms=1_000)
                info = await jetstream.stream_info("EVERYTHING")
                assert info.state.messages == 0
                await jetstream.delete_stream("EVERYTHING")
                await writer.ships_all()
        await all_once(url, records)

    asyncio.run(scene())


def test_an_authority_that_is_changed_under_way(tmp_path: Path) -> None:
    """The server shows a certificate of another one: refused until the agent's file has it, too."""
    records, port = records_of(JOB, 6), free_port()
    (old, old_key), (new, new_key) = certificate(tmp_path / "old"), certificate(tmp_path / "new")
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(Path(old).read_bytes())
    server = NatsServer(url=f"nats://127.0.0.1:{port}", tlsca=str(trusted))

    def config(cert: str, key: str) -> dict[str, Any]:
        store = {"store_dir": str(tmp_path / "store")}
        tls = {"cert_file": cert, "key_file": key}
        return {"listen": f"127.0.0.1:{port}", "tls": tls, "jetstream": store}

    async def scene() -> None:
        with contextlib.ExitStack() as running:
            running.enter_context(nats_server(tmp_path / "server", config(old, old_key)))
            async with attempt(server, tmp_path / "state") as writer:
                writer.write(records[:2])
                await writer.ships_all()
                running.close()
                running.enter_context(nats_server(tmp_path / "server", config(new, new_key)))
                writer.write(records[2:4])
                await writer.hears("certificate verify failed", "CERTIFICATE_VERIFY_FAILED")
                assert not await writer.shipper.flush(timeout_ms=2_000)
                trusted.write_bytes(Path(new).read_bytes())
                writer.write(records[4:])
                await writer.ships_all()
                await all_once(server, records)

    asyncio.run(scene())


def test_a_domain_that_is_changed_under_way(tmp_path: Path) -> None:
    """What the server's JetStream is called matters to leaf nodes, not to its own clients; the
    stream stays."""
    records, port = records_of(JOB, 6), free_port()

    def config(domain: str) -> dict[str, Any]:
        store = {"store_dir": str(tmp_path / "store"), **({"domain": domain} if domain else {})}
        return {"listen": f"127.0.0.1:{port}", "server_name": "s", "jetstream": store}

    async def scene() -> None:
        url = f"nats://127.0.0.1:{port}"
        with contextlib.ExitStack() as running:
            running.enter_context(nats_server(tmp_path / "server", config("")))
            async with attempt(url, tmp_path / "state") as writer:
                for number, domain in enumerate(("east", "west")):
                    writer.write(records[number * 2 : number * 2 + 2])
                    await writer.ships_all()
                    running.close()
                    running.enter_context(nats_server(tmp_path / "server", config(domain)))
                writer.write(records[4:])
                await writer.ships_all()
                await all_once(url, records)

    asyncio.run(scene())


class Hub:
    """A hub whose leaf nodes come in by way of a proxy that flaps."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.leaves_port = free_port()

    @contextlib.contextmanager
    def hub(self, domain: str) -> Iterator[str]:
        config = {
            "server_name": "hub",
            "accounts": {
                "LOG": {"users": [{"user": "me", "password": "me"}], "jetstream": "enabled"}
            },
            "leafnodes": {"listen": f"127.0.0.1:{self.leaves_port}"},
            "jetstream": {"store_dir": str(self.directory / "store"), "domain": domain},
        }
        with nats_server(self.directory / "hub", config) as address:
            yield f"nats://me:me@{address}"

    @contextlib.contextmanager
    def leaf(self, port: int, *, domain: str = "hub") -> Iterator[str]:
        remote = {"url": f"nats://me:me@127.0.0.1:{port}", "account": "LOG"}
        config = {
            "server_name": "leaf",
            "accounts": {"LOG": {"users": [{"user": "me", "password": "me"}]}},
            "leafnodes": {"remotes": [remote], "reconnect": "100ms"},
            "default_js_domain": {"LOG": domain},
            "jetstream": None,
        }
        with nats_server(self.directory / "leaf", config) as address:
            yield f"nats://me:me@{address}"


def test_a_leaf_node_that_flaps_while_records_come(tmp_path: Path) -> None:
    records, site = records_of(JOB, 40), Hub(tmp_path)

    async def scene(hub: str) -> None:
        async with Proxy(to_port=site.leaves_port) as proxy:
            with site.leaf(proxy.port) as leaf:
                async with attempt(leaf, tmp_path / "state") as writer:
                    for number in range(8):
                        writer.write(records[number * 5 : number * 5 + 5])
                        await asyncio.sleep(0.4)
                        proxy.cut()
                        await asyncio.sleep(0.2)
                    await writer.ships_all()
                    await all_once(hub, records)

    with site.hub("hub") as hub:
        asyncio.run(scene(hub))


def test_a_hub_whose_domain_is_changed_is_missed_and_found_again(tmp_path: Path) -> None:
    """Leaf nodes map to a domain by its name."""
    records, site = records_of(JOB, 6), Hub(tmp_path)

    async def scene() -> None:
        with contextlib.ExitStack() as running, site.leaf(site.leaves_port) as leaf:
            hub = running.enter_context(site.hub("hub"))
            async with attempt(leaf, tmp_path / "state") as writer:
                writer.write(records[:2])
                await writer.ships_all()
                running.close()
                running.enter_context(site.hub("other"))
                writer.write(records[2:4])
                assert not await writer.shipper.flush(timeout_ms=3_000)
                assert writer.told
                running.close()
                hub = running.enter_context(site.hub("hub"))
                writer.write(records[4:])
                await writer.ships_all()
                await all_once(hub, records)

    asyncio.run(scene())


def test_a_mirror_that_lags_shows_less_and_goes_on(tmp_path: Path) -> None:
    """Who reads it meanwhile has the beginning, in order, and nothing that is not so."""
    records = records_of(JOB, 20)

    async def scene(url: str) -> None:
        async with connected(url) as connection:
            jetstream = connection.link.client.jetstream()
            await connection.ensure_stream()
            after = 0
            for record in records[:10]:
                after = await connection.append(record, after_sequence=after)
            await jetstream.add_stream(
                name="COPY",
                storage="memory",
                mirror={"name": STREAM},
                allow_direct=True,
                mirror_direct=True,
            )
            for record in records[10:]:
                after = await connection.append(record, after_sequence=after)
            last: list[Record] = []
            async with asyncio.timeout(WAIT_S):
                while len(last) < len(records):
                    last = await connection.read_job(JOB)
                    assert last == records[: len(last)]

    with nats_server(tmp_path) as address:
        asyncio.run(scene(f"nats://{address}"))


@pytest.mark.parametrize("years", [-40, 40])
def test_clocks_that_are_decades_off(
    own_nats_server: EmbeddedServer, tmp_path: Path, years: int
) -> None:
    """Of the agent, seen from the server, or the other way round: no order is taken from them."""
    by_ms = years * 365 * 86_400_000
    records = [
        replace(record, at_unix_ms=record.at_unix_ms + (by_ms if record.follows % 2 else 0))
        for record in records_of(JOB, 10)
    ]

    async def scene() -> None:
        async with attempt(own_nats_server.url, tmp_path) as writer:
            writer.write(records)
            await writer.ships_all()
        await all_once(own_nats_server.url, records)

    asyncio.run(scene())
