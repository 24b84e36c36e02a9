"""The log where one machine is outgrown: the files of deploy/nats, as they are, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drainfsm.core.codec import decode
from drainfsm.core.records import Record
from drainfsm.errors import BrokerError
from drainfsm.log import Connection, connect
from drainfsm.log.shipment import Shipment
from drainfsm.log.stream import MessageReply, StreamReply
from drainfsm_kit.agent_process import free_port
from drainfsm_kit.logs import records_of
from drainfsm_kit.nats_servers import configured_server

FILES = Path(__file__).parents[2] / "deploy" / "nats"
JOB, WAIT_S = "job", 90.0
USER = {"USER_NAME": "me", "PASSWORD": "secret"}


@contextlib.contextmanager
def server(file: str, directory: Path, **variables: str) -> Iterator[str]:
    """URL without a user."""
    given = {"CLIENTS": "127.0.0.1:-1", "STORE": str(directory / "store"), **USER, **variables}
    with configured_server(FILES / file, variables=given) as address:
        yield address


def url(address: str, user: str = "me") -> str:
    return f"nats://{user}:secret@{address}"


@contextlib.asynccontextmanager
async def connected(address: str, user: str = "me") -> Any:
    connection = await connect(url(address, user), timeout_s=30)
    try:
        yield connection
    finally:
        await connection.close()


async def create(connection: Connection, file: str) -> None:
    """A stream as its file says, once the servers have found each other."""
    body = json.loads((FILES / file).read_text())
    reply = StreamReply()
    for _ in range(int(WAIT_S / 0.2)):
        with contextlib.suppress(BrokerError):
            subject = f"$JS.API.STREAM.CREATE.{body['name']}"
            reply = await connection.link.call(subject, json.dumps(body).encode(), StreamReply)
            if reply.error is None:
                return
        await asyncio.sleep(0.2)
    raise AssertionError(reply)


async def ship(address: str, records: list[Record], user: str = "me", **stream: Any) -> None:
    """As an agent at that server would, once the stream is there."""
    async with connected(address, user) as connection:
        for _ in range(int(WAIT_S / 0.2)):
            try:
                await connection.ensure_stream(**stream)
                break
            except BrokerError:
                await asyncio.sleep(0.2)
        shipment = Shipment(records, job_id=records[0].job_id, epoch=records[0].epoch)
        await shipment.ship(connection)


async def read_until(address: str, records: list[Record]) -> None:
    """A reader at that server finds these records, and no others."""
    found: list[Record] = []
    async with asyncio.timeout(WAIT_S):
        while found != records:
            await asyncio.sleep(0.1)
            with contextlib.suppress(BrokerError):
                async with connected(address) as connection:
                    found = await connection.read_job(JOB)


def test_a_region_writes_over_the_gateway_and_reads_its_mirror_while_the_other_is_away(
    tmp_path: Path,
) -> None:
    gateways = {region: f"127.0.0.1:{free_port()}" for region in ("east", "west")}
    urls = {region.upper(): f"nats://{address}" for region, address in gateways.items()}
    records = records_of(JOB, 20)

    def region(name: str) -> contextlib.AbstractContextManager[str]:
        own = {"NAME": f"{name}-1", "REGION": name, "GATEWAY": gateways[name]}
        routes = f"127.0.0.1:{free_port()}"
        own |= {"ROUTES": routes, "PEER": f"nats://{routes}"}
        return server("region.conf", tmp_path / name, **own, **urls)

    async def write(east: str, west: str) -> None:
        await ship(east, records[:1])
        await ship(west, records)
        async with connected(west) as connection:
            await create(connection, "mirror.json")
        await read_until(west, records)
        await mirrored(west, len(records))

    async def mirrored(west: str, count: int) -> None:
        async with connected(west) as connection, asyncio.timeout(WAIT_S):
            reply = StreamReply()
            while reply.state.messages < count:
                await asyncio.sleep(0.1)
                with contextlib.suppress(BrokerError):
                    subject = "$JS.API.STREAM.INFO.DRAINFSM_WEST"
                    reply = await connection.link.call(subject, b"", StreamReply)

    with region("west") as west:
        with region("east") as east:
            asyncio.run(write(east, west))
        asyncio.run(read_until(west, records))


def test_sites_write_into_their_own_streams_and_the_hub_gathers_them(tmp_path: Path) -> None:
    leafs = f"127.0.0.1:{free_port()}"
    records = records_of(JOB, 10)
    other = records_of("other", 10, writer="b")

    def site(name: str) -> contextlib.AbstractContextManager[str]:
        hub_url = f"nats://me:secret@{leafs}"
        return server("site.conf", tmp_path / name, NAME=name, HUB=hub_url)

    async def linked(connection: Connection, name: str) -> None:
        """The hub reaches the site. Else its first try to copy is made in vain, and the next one
        comes half a minute later."""
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(BrokerError):
                    subject = f"$JS.{name}.API.STREAM.INFO.DRAINFSM"
                    await connection.link.call(subject, b"", StreamReply)
                    return
                await asyncio.sleep(0.1)

    async def scene(a: str, b: str) -> None:
        await ship(a, records[:4])
        await ship(b, other)
        with server("hub.conf", tmp_path / "hub", LEAFS=leafs) as hub:
            async with connected(hub) as connection:
                for name in ("site-a", "site-b"):
                    await linked(connection, name)
                await create(connection, "all-sites.json")
                await read_until(hub, records[:4])
                await ship(a, records)
                await read_until(hub, records)
                assert await connection.read_job("other") == other
                with pytest.raises(BrokerError, match="copies another stream"):
                    await connection.ensure_stream()

    with site("site-a") as a, site("site-b") as b:
        asyncio.run(scene(a, b))


def test_teams_have_logs_of_their_own_and_the_platform_a_copy_by_team(tmp_path: Path) -> None:
    speech, vision = records_of(JOB, 10, writer="speech"), records_of(JOB, 7, writer="vision")

    async def copied(connection: Connection, team: str) -> list[Record]:
        found: list[Record] = []
        query: dict[str, object] = {"seq": 1, "next_by_subj": f"teams.{team}.drainfsm.v1.{JOB}.1"}
        subject = "$JS.API.STREAM.MSG.GET.DRAINFSM_TEAMS"
        while True:
            reply = await connection.link.call(subject, json.dumps(query).encode(), MessageReply)
            if reply.message is None:
                return found
            found.append(decode(reply.message.data))
            query["seq"] = reply.message.seq + 1

    async def scene(address: str) -> None:
        await ship(address, speech, "speech")
        await ship(address, vision, "vision")
        for team, records in (("speech", speech), ("vision", vision)):
            async with connected(address, team) as connection:
                assert await connection.read_job(JOB) == records
        async with connected(address, "platform") as connection, asyncio.timeout(WAIT_S):
            await create(connection, "teams.json")
            for team, records in (("speech", speech), ("vision", vision)):
                while await copied(connection, team) != records:
                    await asyncio.sleep(0.1)
            await connection.link.client.publish(f"drainfsm.v1.{JOB}.1", b"forged")
            await connection.link.client.flush()
        async with connected(address, "speech") as connection:
            assert await connection.read_job(JOB) == speech

    with server("teams.conf", tmp_path) as address:
        asyncio.run(scene(address))
