"""What administrators, clocks and readers do to a log under way: told, and whole in the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from drainfsm.core.codec import decode
from drainfsm.core.events import UnknownFact
from drainfsm.core.records import Record, subject_of
from drainfsm.errors import BrokerError, RecordRefusedError
from drainfsm.log import Connection, NatsServer, connect, stream
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.journal import Journal, journal_path, read_journal
from drainfsm.log.shipper import Shipper, World
from drainfsm.log.stream import STREAM, create_request
from drainfsm_kit.agent_process import free_port
from drainfsm_kit.logs import Proxy, records_of
from drainfsm_kit.nats_servers import certificate, nats_server

JOB, LONG_MS, WAIT_S = "job", 90_000, 90.0
LEAKED = b"leaked"


@contextlib.asynccontextmanager
async def shipping(
    server: NatsServer | str,
    state_dir: Path,
    *,
    epoch: int,
    told: list[str],
    world: World | None = None,
) -> AsyncIterator[tuple[Shipper, Journal]]:
    shipper = Shipper(
        server=server, state_dir=state_dir, job_id=JOB, on_error=told.append, world=world
    )
    path = journal_path(state_dir, job_id=JOB, epoch=epoch)
    with contextlib.closing(Journal.open(path, job_id=JOB, epoch=epoch)) as journal:
        shipper.attach(journal)
        await shipper.start()
        try:
            yield shipper, journal
        finally:
            await shipper.close(timeout_ms=5_000)


async def read(server: NatsServer | str) -> list[Record]:
    connection = await connect(server, timeout_s=30)
    try:
        return await connection.read_job(JOB)
    finally:
        await connection.close()


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not reached():
            await asyncio.sleep(0.05)


def leave_journal(state_dir: Path, records: list[Record]) -> None:
    epoch = records[0].epoch
    path = journal_path(state_dir, job_id=JOB, epoch=epoch)
    with contextlib.closing(Journal.open(path, job_id=JOB, epoch=epoch)) as journal:
        journal.append(*records)


EVICTS = {"discard": "old", "max_msgs": 100}


@pytest.mark.parametrize("how", ["mapped to another job", "made to evict"])
def test_what_was_acknowledged_and_is_not_there_to_stay_is_found_before_the_agent_leaves(
    tmp_path: Path, how: str
) -> None:
    """An acknowledgement names neither subject nor configuration."""
    told: list[str] = []
    mapped = {"mappings": {f"drainfsm.v1.{JOB}.*": "drainfsm.v1.other.{{wildcard(1)}}"}}

    async def scene(url: str) -> bool:
        async with shipping(url, tmp_path / "state", epoch=1, told=told) as (shipper, journal):
            journal.append(*records_of(JOB, 3))
            shipper.poke()
            if how == "made to evict":
                assert await shipper.flush(timeout_ms=LONG_MS)
                await reconfigure(url, EVICTS)
            return await shipper.flush(timeout_ms=3_000)

    with nats_server(tmp_path / "server", mapped if how.startswith("mapped") else None) as address:
        assert not asyncio.run(scene(f"nats://{address}"))
    expected = {
        "mapped to another job": "the stream has 0 of the 3 records of drainfsm.v1.job.1",
        "made to evict": "discard is 'old', not 'new'",
    }
    assert any(expected[how] in line for line in told), told


KEPT_S = 4
"""By the stream of the next tests; real ones keep a week at least."""


async def keeping_briefly(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "AGE_DAYS_MIN", 0)
    connection = await connect(address, timeout_s=30)
    await connection.ensure_stream()
    await connection.close()
    age_ns = KEPT_S * 1_000_000_000
    await reconfigure(address, {"max_age": age_ns, "duplicate_window": age_ns})


async def until_empty(address: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while await read(address):
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("left", [0, 2])
def test_what_a_live_attempt_wrote_before_the_stream_forgot_it_is_neither_lost_nor_shipped_again(
    own_nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    records, told = records_of(JOB, 7), list[str]()
    (kept_journal := tmp_path / "state").mkdir()

    async def scene() -> None:
        await keeping_briefly(own_nats_server.url, monkeypatch)
        async with Proxy(to_port=own_nats_server.port) as proxy:
            url = own_nats_server.url.replace(f":{own_nats_server.port}", f":{proxy.port}")
            async with shipping(url, kept_journal, epoch=1, told=told) as (shipper, journal):
                journal.append(*records[:3])
                assert await shipper.flush(timeout_ms=LONG_MS)
                await until_empty(own_nats_server.url)
                journal.append(*records[3 : 3 + left])
                assert await shipper.flush(timeout_ms=LONG_MS)
                proxy.cut()
                journal.append(*records[3 + left : 5 + left])
                assert await shipper.flush(timeout_ms=LONG_MS)
                found = await read(own_nats_server.url)
                assert found == records[3 : 5 + left][-len(found) :]

    asyncio.run(scene())
    assert sum("leave it, and are not shipped again" in line for line in told) == 1
    assert not any("that it acknowledged" in line for line in told), told


def test_what_is_gone_before_its_time_is_told_and_shipped_again(
    own_nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that forgets by age is asked at the end like any other."""
    records, told = records_of(JOB, 3), list[str]()

    async def scene() -> None:
        url = own_nats_server.url
        await keeping_briefly(url, monkeypatch)
        await reconfigure(url, {"max_age": 7 * stream.DAY_NS})
        async with shipping(url, tmp_path / "state", epoch=1, told=told) as (shipper, journal):
            journal.append(*records)
            assert await shipper.flush(timeout_ms=LONG_MS)
            for changes in ({"discard": "old", "max_msgs": 1}, {"discard": "new", "max_msgs": -1}):
                await reconfigure(url, changes)
            assert await shipper.flush(timeout_ms=LONG_MS)
            assert [one for one in await read(url) if one.id == records[0].id]

    asyncio.run(scene())
    assert any("the stream has 1 of the 3 records" in line for line in told), told


def test_earlier_attempts_that_the_stream_has_forgotten_are_told_once(
    own_nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    """One of them in part: what is there of it is enough to know the rest."""
    day_ms = 86_400_000

    def aged(count: int, *, epoch: int, days: float) -> list[Record]:
        by_ms = round(days * day_ms)
        return [
            replace(r, at_unix_ms=r.at_unix_ms - by_ms) for r in records_of(JOB, count, epoch=epoch)
        ]

    gone, partly = (
        aged(3, epoch=1, days=9),
        [*aged(2, epoch=2, days=9), *records_of(JOB, 4, epoch=2)[2:]],
    )
    for records in (gone, partly):
        leave_journal(tmp_path, records)

    async def start(url: str, epoch: int) -> list[str]:
        told: list[str] = []
        async with shipping(url, tmp_path, epoch=epoch, told=told) as (shipper, journal):
            journal.append(*records_of(JOB, 1, epoch=epoch))
            assert await shipper.flush(timeout_ms=LONG_MS)
        return [line for line in told if "is not shipped" in line or "acknowledged" in line]

    async def scene() -> None:
        url = own_nats_server.url
        connection = await connect(url, timeout_s=30)
        await connection.ensure_stream()
        after = 0
        for record in partly[2:]:
            after = await connection.append(record, after_sequence=after)
        await connection.close()
        await reconfigure(url, {"max_age": 7 * stream.DAY_NS})
        first, second = await start(url, 3), await start(url, 4)
        assert ["attempts 1 to 1 are older" in line for line in first] == [True], first
        assert second == []
        shipped = [(r.epoch, r.follows) for r in await read(url)]
        assert shipped == [(2, 2), (2, 3), (3, 0), (4, 0)]

    asyncio.run(scene())


async def reconfigure(url: str, changes: dict[str, object]) -> None:
    connection = await connect(url, timeout_s=30)
    config = (await connection.stream_info()).config | changes
    subject = f"$JS.API.STREAM.UPDATE.{STREAM}"
    answer = await connection.link.client.request(subject, json.dumps(config).encode(), timeout=30)
    assert "error" not in json.loads(answer.data)
    await connection.close()


@pytest.mark.parametrize("made_anew", [True, False])
def test_a_stream_that_is_deleted_under_way_gets_everything_again(
    own_nats_server: EmbeddedServer, tmp_path: Path, made_anew: bool
) -> None:
    earlier, own, told = records_of(JOB, 3), records_of(JOB, 4, epoch=2), list[str]()
    leave_journal(tmp_path, earlier)

    async def scene() -> None:
        async with shipping(own_nats_server.url, tmp_path, epoch=2, told=told) as (
            shipper,
            journal,
        ):
            journal.append(*own[:3])
            assert await shipper.flush(timeout_ms=LONG_MS)
            admin = await connect(own_nats_server.url, timeout_s=30)
            await admin.link.client.request(f"$JS.API.STREAM.DELETE.{STREAM}", b"", timeout=30)
            if made_anew:
                await admin.ensure_stream()
            await admin.close()
            journal.append(*own[3:])
            assert await shipper.flush(timeout_ms=LONG_MS)
            found = await read(own_nats_server.url)
            assert sorted(found, key=lambda one: (one.epoch, one.follows)) == [*earlier, *own]

    asyncio.run(scene())


def test_what_the_stream_is_known_to_have_is_not_read_again_unless_something_changed(
    own_nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    attempts = {epoch: records_of(JOB, 3, epoch=epoch) for epoch in (1, 2, 3)}
    for records in attempts.values():
        leave_journal(tmp_path, records)

    async def read_at_start(epoch: int) -> list[int]:
        """Epochs of the journals that the next attempt reads."""
        seen: list[int] = []

        def reading(path: Path) -> list[Record]:
            seen.append(int(path.stem))
            return list(read_journal(path))

        world = World(read_journal=reading)
        told: list[str] = []
        url = own_nats_server.url
        async with shipping(url, tmp_path, epoch=epoch, told=told, world=world) as (shipper, _):
            assert await shipper.flush(timeout_ms=LONG_MS)
        return seen

    async def scene() -> None:
        assert await read_at_start(4) == [1, 2, 3]
        assert await read_at_start(4) == []
        leave_journal(tmp_path, records_of(JOB, 1, epoch=2, first=3))
        assert await read_at_start(4) == [2]
        assert await read_at_start(4) == []
        admin = await connect(own_nats_server.url, timeout_s=30)
        await admin.link.client.jetstream().publish(subject_of(job_id=JOB, epoch=3), LEAKED)
        assert await read_at_start(4) == [3]
        await admin.link.client.request(f"$JS.API.STREAM.DELETE.{STREAM}", b"", timeout=30)
        await admin.ensure_stream()
        context = admin.link.client.jetstream()
        for _ in attempts[1]:  # as many messages as the other stream had
            await context.publish(subject_of(job_id=JOB, epoch=1), LEAKED)
        assert await read_at_start(4) == [1, 2, 3]
        attempts[2] += records_of(JOB, 1, epoch=2, first=3)
        messages = [one.data async for one in admin.messages(f"drainfsm.v1.{JOB}.*")]
        found = [decode(data) for data in messages if data != LEAKED]
        assert found == [one for epoch in (1, 2, 3) for one in attempts[epoch]]
        await admin.close()

    asyncio.run(scene())


def test_a_stream_for_small_messages_is_told_with_what_to_raise(
    own_nats_server: EmbeddedServer,
) -> None:
    body = json.loads(create_request(replicas=1)) | {"max_msg_size": 100}
    (record,) = records_of(JOB, 1)
    large = replace(
        record, events=(UnknownFact(kind="later", body=Raw(b'{"kind":"later"}' + b" " * 200)),)
    )

    async def scene() -> None:
        connection = await connect(own_nats_server.url, timeout_s=30)
        path = f"$JS.API.STREAM.CREATE.{STREAM}"
        await connection.link.client.request(path, json.dumps(body).encode(), timeout=30)
        assert any("max_msg_size" in text for text in await connection.ensure_stream())
        with pytest.raises(RecordRefusedError, match="max_msg_size"):
            await connection.append(large, after_sequence=0)
        await connection.close()

    asyncio.run(scene())


def test_a_reader_that_stalls_is_cut_off_and_goes_on_where_it_was(tmp_path: Path) -> None:
    count, body = 300, b" " * 100_000

    async def fill(connection: Connection) -> None:
        context = connection.link.client.jetstream()
        for number in range(count):
            await context.publish(subject_of(job_id=JOB, epoch=1), b"%d" % number + body)

    async def scene(url: str) -> None:
        connection = await connect(url, timeout_s=30)
        await connection.ensure_stream()
        await fill(connection)
        found: list[int] = []
        async for message in connection.messages(subject_of(job_id=JOB, epoch=1)):
            if not found:
                time.sleep(3)  # the whole loop, as a blocking view would
            found.append(int(message.data))
        assert found == list(range(count))
        await connection.close()

    with nats_server(tmp_path, {"write_deadline": "500ms"}) as address:
        asyncio.run(scene(f"nats://{address}"))


def test_a_certificate_that_expires_is_told_and_its_successor_taken(tmp_path: Path) -> None:
    records, told, port = records_of(JOB, 3), list[str](), free_port()
    cert, key = certificate(tmp_path, valid_s=15)
    expired = time.monotonic() + 15
    config = {"listen": f"127.0.0.1:{port}", "tls": {"cert_file": cert, "key_file": key}}
    server = NatsServer(url=f"nats://127.0.0.1:{port}", tlsca=cert)

    async def scene() -> None:
        with contextlib.ExitStack() as running:
            running.enter_context(nats_server(tmp_path / "server", config))
            async with shipping(server, tmp_path / "state", epoch=1, told=told) as (
                shipper,
                journal,
            ):
                journal.append(records[0])
                assert await shipper.flush(timeout_ms=LONG_MS)
                running.close()
                await until(lambda: time.monotonic() > expired)
                running.enter_context(nats_server(tmp_path / "server", config))
                journal.append(records[1])
                shipper.poke()
                await until(lambda: any("expired" in text for text in told))
                running.close()
                certificate(tmp_path)
                running.enter_context(nats_server(tmp_path / "server", config))
                journal.append(records[2])
                assert await shipper.flush(timeout_ms=LONG_MS)
                assert await read(server) == records

    asyncio.run(scene())


def test_a_user_that_is_revoked_is_told_and_goes_on_once_it_is_back(tmp_path: Path) -> None:
    records, told, port = records_of(JOB, 3), list[str](), free_port()

    def users(*names: str) -> dict[str, object]:
        given = [{"user": name, "password": "secret"} for name in names]
        return {"listen": f"127.0.0.1:{port}", "authorization": {"users": given}}

    async def scene() -> None:
        url = f"nats://agent:secret@127.0.0.1:{port}"
        with contextlib.ExitStack() as running:
            running.enter_context(nats_server(tmp_path / "server", users("agent", "other")))
            async with shipping(url, tmp_path / "state", epoch=1, told=told) as (shipper, journal):
                journal.append(records[0])
                assert await shipper.flush(timeout_ms=LONG_MS)
                running.close()
                running.enter_context(nats_server(tmp_path / "server", users("other")))
                journal.append(records[1])
                shipper.poke()
                await until(lambda: any("uthoriz" in text for text in told))
                assert not any("secret" in text for text in told)
                running.close()
                running.enter_context(nats_server(tmp_path / "server", users("agent")))
                journal.append(records[2])
                assert await shipper.flush(timeout_ms=LONG_MS)
                assert await read(url) == records

    asyncio.run(scene())


def test_names_that_are_nearly_equal_and_odd_subjects_do_not_mix(
    own_nats_server: EmbeddedServer,
) -> None:
    names = ("job", "job-1", "job_1", "Job", "jo", "1", "-")
    odd = ("drainfsm.v1.job.1.x", "drainfsm.v1.job", "drainfsm.v1.jo\u0308b.1", "drainfsm.v1.*x.1")

    async def scene() -> None:
        connection = await connect(own_nats_server.url, timeout_s=30)
        await connection.ensure_stream()
        for name in names:
            await connection.append(records_of(name, 1)[0], after_sequence=0)
        for subject in odd:
            with contextlib.suppress(BrokerError, TimeoutError):
                await connection.link.client.jetstream().publish(subject, b"{}")
        for name in names:
            assert await connection.read_job(name) == records_of(name, 1)
        await connection.close()

    asyncio.run(scene())
