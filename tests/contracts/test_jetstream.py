"""The stream of a real nats-server: what it must be, reading it, and following it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.aio.msg import Msg

from drainfsm.core.codec import encode
from drainfsm.core.records import Record, subject_of
from drainfsm.errors import (
    BrokerError,
    RecordRefusedError,
    RecordUnreadableError,
)
from drainfsm.log import jetstream
from drainfsm.log.embedded import EmbeddedServer, server_binary
from drainfsm.log.jetstream import STREAM, Connection, connect
from drainfsm.log.tail import Tail
from drainfsm_kit.logs import Proxy, records_of
from drainfsm_kit.tcp import serving


@contextlib.asynccontextmanager
async def connected(server: EmbeddedServer) -> AsyncIterator[Connection]:
    connection = await connect(server.url, timeout_s=30)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
def job() -> str:
    return f"job-{uuid.uuid4().hex}"


async def append(connection: Connection, records: list[Record], *, after: int = 0) -> int:
    for record in records:
        after = await connection.append(record, after_sequence=after)
    return after


async def pour(connection: Connection, records: list[Record]) -> None:
    """Store many records quickly, without asking for their place."""
    client = connection.link.client
    for record in records:
        await client.publish(subject_of(job_id=record.job_id, epoch=record.epoch), encode(record))
    await client.flush(60)
    last = subject_of(job_id=records[-1].job_id, epoch=records[-1].epoch)
    while True:
        stored = await connection.last(last)
        if stored is not None and stored.data == encode(records[-1]):
            return


# --- the stream -------------------------------------------------------------------------------


def test_the_stream_is_created_append_only_and_found_again(
    own_nats_server: EmbeddedServer,
) -> None:
    async def scene() -> dict[str, Any]:
        async with connected(own_nats_server) as connection:
            assert await connection.ensure_stream(sync_always=True) == []
            assert connection.created_stream()
            assert not connection.created_stream()
        async with connected(own_nats_server) as connection:
            (warning,) = await connection.ensure_stream()
            assert not connection.created_stream()
            assert "1 replica" in warning
            assert "may not sync before it acknowledges" in warning
            reply = await connection.link.client.request(f"$JS.API.STREAM.INFO.{STREAM}")
            config: dict[str, Any] = json.loads(reply.data)["config"]
            return config

    config = asyncio.run(scene())
    assert config["subjects"] == ["drainfsm.v1.>"]
    assert config["deny_delete"] is config["deny_purge"] is config["allow_direct"] is True
    assert (config["discard"], config["retention"], config["storage"]) == ("new", "limits", "file")
    assert config["duplicate_window"] > 0


def test_nobody_deletes_or_purges_a_record(own_nats_server: EmbeddedServer, job: str) -> None:
    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            await connection.ensure_stream()
            records = records_of(job, 2)
            await append(connection, records)
            client = connection.link.client
            for path, body in (("PURGE", b""), ("MSG.DELETE", b'{"seq":1}')):
                reply = await client.request(f"$JS.API.STREAM.{path}.{STREAM}", body, timeout=10)
                assert "error" in json.loads(reply.data)
            assert await connection.read_job(job) == records

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"discard": "old"}, "discard is 'old', not 'new'"),
        ({"deny_delete": False}, "deny_delete is False, not True"),
        ({"deny_purge": False}, "deny_purge is False, not True"),
        ({"storage": "memory"}, "storage is 'memory', not 'file'"),
        ({"max_age": 60_000_000_000, "duplicate_window": 10_000_000_000}, "max_age is 60000000000"),
        ({"max_msgs_per_subject": 10}, "max_msgs_per_subject is 10, not -1"),
        ({"retention": "interest"}, "retention is 'interest', not 'limits'"),
        ({"subjects": ["drainfsm.v1.job.>"]}, r"subjects is \['drainfsm.v1.job.>'\]"),
        ({"allow_direct": False}, "allow_direct is False, not True"),
        ({"persist_mode": "async"}, "persist_mode is 'async', not 'default'"),
    ],
)
def test_a_stream_that_is_no_append_only_log_is_refused_by_field(
    own_nats_server: EmbeddedServer, changes: dict[str, object], told: str
) -> None:
    config = {
        "name": STREAM,
        "subjects": ["drainfsm.v1.>"],
        "discard": "new",
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,
        "storage": "file",
        "retention": "limits",
        **changes,
    }

    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            body = json.dumps(config).encode()
            path = f"$JS.API.STREAM.CREATE.{STREAM}"
            reply = await connection.link.client.request(path, body, timeout=10)
            assert "error" not in json.loads(reply.data), reply.data
            with pytest.raises(BrokerError, match=told) as refused:
                await connection.ensure_stream()
            assert str(refused.value).count(" is ") == 2, "only what differs is named"

    asyncio.run(scene())


def test_too_few_replicas_are_refused(own_nats_server: EmbeddedServer) -> None:
    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            with pytest.raises(BrokerError, match=r"cannot create stream DRAINFSM: .*replicas"):
                await connection.ensure_stream(replicas=3)
            await connection.ensure_stream()
            with pytest.raises(BrokerError, match="num_replicas is 1, not 3"):
                await connection.ensure_stream(replicas=3)

    asyncio.run(scene())


def test_a_full_stream_refuses_and_forgets_nothing(
    own_nats_server: EmbeddedServer, job: str
) -> None:
    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            await connection.ensure_stream()
            js = connection.link.client.jetstream()
            info = await js.stream_info(STREAM)
            await js.update_stream(info.config.evolve(max_msgs=3))
            records = records_of(job, 4)
            last = await append(connection, records[:3])
            with pytest.raises(RecordRefusedError, match=r"maximum messages.*raise its limits"):
                await connection.append(records[3], after_sequence=last)
            assert await connection.read_job(job) == records[:3]

    asyncio.run(scene())


def test_a_record_too_large_for_the_server_is_refused(nats_server: EmbeddedServer) -> None:
    (record,) = records_of("x" * (9 << 20), 1)

    async def scene() -> None:
        async with connected(nats_server) as connection:
            with pytest.raises(RecordRefusedError, match="raise `max_payload`"):
                await connection.append(record, after_sequence=0)

    asyncio.run(scene())


# --- servers that cannot be used --------------------------------------------------------------


def test_an_unreachable_server_is_told_without_its_password() -> None:
    with pytest.raises(BrokerError, match=r"cannot use the NATS server nats://127.0.0.1:1:.*") as e:
        asyncio.run(connect("nats://me:secret@127.0.0.1:1", timeout_s=0.5))
    assert "secret" not in str(e.value)
    assert "Connect call failed" in str(e.value)


def test_a_port_where_nobody_speaks_nats_is_told() -> None:
    async def scene() -> None:
        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with serving(mute) as port:
            with pytest.raises(BrokerError, match="cannot use the NATS server"):
                await connect(f"nats://127.0.0.1:{port}", timeout_s=0.5)

    asyncio.run(scene())


def test_a_server_without_jetstream_is_told() -> None:
    async def scene(url: str) -> None:
        connection = await connect(url, timeout_s=30)
        with pytest.raises(BrokerError, match="JetStream is off"):
            await connection.ensure_stream()
        with pytest.raises(BrokerError, match="JetStream is off"):
            await connection.read_job("job")
        await connection.close()

    command = [server_binary(), "-a", "127.0.0.1", "-p", "-1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            told = re.compile(r"Listening for client connections on (\S+)")
            (address,) = next(filter(None, map(told.search, server.stderr))).groups()
            asyncio.run(scene(f"nats://{address}"))
        finally:
            server.kill()


def test_a_server_without_the_stream_is_told(own_nats_server: EmbeddedServer) -> None:
    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            with pytest.raises(BrokerError, match="no such stream"):
                await connection.read_job("job")
            with pytest.raises(BrokerError, match="no stream takes it"):
                await append(connection, records_of("job", 1))

    asyncio.run(scene())


def test_a_lost_connection_ends_a_call_at_once(own_nats_server: EmbeddedServer) -> None:
    async def scene() -> None:
        async with Proxy(to_port=own_nats_server.port) as proxy:
            token = own_nats_server.url.split("@")[0]
            connection = await connect(f"{token}@127.0.0.1:{proxy.port}", timeout_s=30)
            await connection.ensure_stream()
            proxy.lose_answers = True
            call = asyncio.create_task(append(connection, records_of("job", 1)))
            before = proxy.request_bytes
            while proxy.request_bytes == before:
                await asyncio.sleep(0)
            proxy.cut()
            with pytest.raises(BrokerError, match="lost before"):
                await call
            with pytest.raises(BrokerError, match="not connected"):
                await append(connection, records_of("job", 1))
            await connection.close()

    asyncio.run(scene())


@pytest.mark.parametrize("name", ["", "*", ">", "a.b", "a b", "a\r\nPUB x 0"])
def test_a_job_name_cannot_reach_another_subject(nats_server: EmbeddedServer, name: str) -> None:
    async def scene() -> None:
        async with connected(nats_server) as connection:
            with pytest.raises(ValueError, match="letters, digits, _ and - only"):
                await connection.read_job(name)
            with pytest.raises(ValueError, match="letters, digits, _ and - only"):
                await append(connection, records_of(name, 1))

    asyncio.run(scene())


# --- reading ----------------------------------------------------------------------------------


def test_a_job_is_read_over_its_attempts_and_nothing_of_others(
    nats_server: EmbeddedServer, job: str
) -> None:
    first, second = records_of(job, 3), records_of(job, 2, epoch=2)

    async def scene() -> None:
        async with connected(nats_server) as connection:
            await connection.ensure_stream()
            assert await connection.read_job(job) == []
            last = await append(connection, first[:2])
            await append(connection, records_of(f"{job}x", 1))
            await append(connection, second)
            await append(connection, first[2:], after=last)
            assert await connection.read_job(job) == [*first[:2], *second, first[2]]
            assert await connection.read_subject(subject_of(job_id=job, epoch=2)) == second

    asyncio.run(scene())


def test_a_history_of_many_batches_is_whole(
    nats_server: EmbeddedServer, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "BATCH_RECORDS", 100)
    records = records_of(job, 1_050)

    async def scene() -> None:
        async with connected(nats_server) as connection:
            await connection.ensure_stream()
            await pour(connection, records)
            for count in (1_050, 1_000, 100, 99, 1):
                assert await connection.read_job(job) == records
                monkeypatch.setattr(jetstream, "BATCH_RECORDS", count)

    asyncio.run(scene())


def test_large_records_are_read_in_batches_of_bounded_size(
    own_nats_server: EmbeddedServer, job: str
) -> None:
    filler = "x" * (6 << 20)
    records = records_of(job, 8, writer=filler)

    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            await connection.ensure_stream()
            await pour(connection, records)
            assert await connection.read_job(job) == records

    asyncio.run(scene())


def test_reading_goes_on_after_a_restart_of_the_server(
    own_nats_server: EmbeddedServer, job: str
) -> None:
    records = records_of(job, 3)

    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            await connection.ensure_stream()
            await append(connection, records)
            assert await connection.read_job(job) == records
            own_nats_server.kill()
            with pytest.raises(BrokerError):
                await connection.read_job(job)
            again = await asyncio.to_thread(restarted, own_nats_server)
            try:
                assert await connection.read_job(job) == records
            finally:
                again.kill()

    asyncio.run(scene())


def restarted(server: EmbeddedServer) -> EmbeddedServer:
    server.kill()
    return EmbeddedServer.start(server.data_dir, port=server.port)


def test_a_message_that_is_no_record_is_told_with_its_place(
    own_nats_server: EmbeddedServer, job: str
) -> None:
    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            await connection.ensure_stream()
            await append(connection, records_of(job, 2))
            await connection.link.client.jetstream().publish(f"drainfsm.v1.{job}.1", b"hello")
            with pytest.raises(
                RecordUnreadableError, match=r"message 3 of stream DRAINFSM: .*hell"
            ):
                await connection.read_job(job)

    asyncio.run(scene())


# --- following --------------------------------------------------------------------------------


async def take(source: AsyncIterator[Record], count: int) -> list[Record]:
    return [await anext(source) for _ in range(count)]


def test_a_follower_gets_what_was_there_and_then_what_comes(
    nats_server: EmbeddedServer, job: str
) -> None:
    records = records_of(job, 6)

    async def scene() -> None:
        async with connected(nats_server) as connection:
            await connection.ensure_stream()
            last = await append(connection, records[:2])
            async with contextlib.aclosing(connection.follow(job)) as following:
                assert await take(following, 2) == records[:2]
                for record in records[2:]:
                    waiting = asyncio.create_task(take(following, 1))
                    await append(connection, records_of(f"{job}x", 1, epoch=record.follows))
                    last = await append(connection, [record], after=last)
                    assert await waiting == [record]

    asyncio.run(scene())


def test_a_follower_reads_on_behind_what_is_no_record_of_the_job(
    own_nats_server: EmbeddedServer, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            await connection.ensure_stream()
            mine, forged = records_of(job, 2), encode(records_of("other", 1)[0])
            subject = subject_of(job_id=job, epoch=1)
            sequence = await connection.append(mine[0], after_sequence=0)
            for data in (b"hello", forged):
                ack = await connection.link.client.jetstream().publish(subject, data)
                sequence = ack.seq
            await connection.append(mine[1], after_sequence=sequence)
            async with contextlib.aclosing(connection.follow(job)) as following:
                assert await take(following, 2) == mine

    asyncio.run(scene())
    assert "message 2 of stream DRAINFSM" in caplog.text
    assert "message 3 of stream DRAINFSM says that it is of job other" in caplog.text


def test_a_follower_may_begin_behind_a_sequence_and_of_all_jobs(
    own_nats_server: EmbeddedServer,
) -> None:
    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            await connection.ensure_stream()
            a, b = records_of("a", 3), records_of("b", 2)
            await append(connection, a)
            await append(connection, b)
            async with contextlib.aclosing(connection.follow_stored(after_sequence=2)) as following:
                found = [await anext(following) for _ in range(3)]
            assert [one.sequence for one in found] == [3, 4, 5]
            assert [one.record for one in found] == [a[2], *b]

    asyncio.run(scene())


def test_a_follower_survives_the_server_killed_and_restarted(
    own_nats_server: EmbeddedServer, job: str
) -> None:
    records = records_of(job, 9)

    async def scene() -> None:
        server = own_nats_server
        async with connected(server) as watcher:
            await watcher.ensure_stream()
            async with contextlib.aclosing(watcher.follow(job)) as following:
                last = 0
                for start in (0, 3, 6):
                    async with connected(server) as writer:
                        waiting = asyncio.create_task(take(following, 3))
                        last = await append(writer, records[start : start + 3], after=last)
                        assert await waiting == records[start : start + 3]
                    server = await asyncio.to_thread(restarted, server)
        server.kill()

    asyncio.run(scene())


def test_a_follower_reads_a_stream_that_was_made_anew_from_its_beginning(
    own_nats_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sequences begin at 1 again: the consumer of the old one would hear nothing."""

    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            await connection.ensure_stream()
            old, new = records_of("a", 4), records_of("b", 2)
            await append(connection, old)
            async with contextlib.aclosing(connection.follow_stored()) as following:
                assert [(await anext(following)).record for _ in old] == old
                waiting = asyncio.ensure_future(anext(following))
                await asyncio.sleep(0)
                delete = f"$JS.API.STREAM.DELETE.{STREAM}"
                await connection.link.client.request(delete, b"", timeout=30)
                await connection.ensure_stream()
                await append(connection, new)
                found = [await waiting, await anext(following)]
                assert [(one.sequence, one.record) for one in found] == [(1, new[0]), (2, new[1])]

    asyncio.run(scene())
    assert "is not the one that was read" in caplog.text


def test_a_follower_that_knows_more_than_the_stream_has_reads_it_from_its_beginning(
    own_nats_server: EmbeddedServer,
) -> None:
    """It came back from a backup, or was made anew while nobody followed."""

    async def scene() -> None:
        async with connected(own_nats_server) as connection:
            await connection.ensure_stream()
            records = records_of("a", 2)
            await append(connection, records)
            async with contextlib.aclosing(connection.follow_stored(after_sequence=9)) as following:
                assert [(await anext(following)).record for _ in records] == records

    asyncio.run(scene())


@pytest.mark.parametrize("lost", [1, 3, 5], ids=["first", "middle", "last"])
def test_a_follower_notices_a_message_that_was_lost_on_the_way(
    nats_server: EmbeddedServer, job: str, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    records = records_of(job, 6)
    heard, arrived = Tail._heard, [0]

    async def lossy(tail: Tail, message: Msg) -> None:
        if message.data:
            arrived[0] += 1
            if arrived[0] == lost:
                return
        await heard(tail, message)

    async def scene() -> None:
        async with connected(nats_server) as connection:
            await connection.ensure_stream()
            last = await append(connection, records[:1])
            async with contextlib.aclosing(connection.follow(job)) as following:
                assert await take(following, 1) == records[:1]
                monkeypatch.setattr(Tail, "_heard", lossy)
                waiting = asyncio.create_task(take(following, 5))
                await consumer_exists(connection, job)
                await append(connection, records[1:], after=last)
                assert await waiting == records[1:]
        assert arrived[0] >= lost, "nothing was lost: the test proves nothing"

    asyncio.run(scene())


async def consumer_exists(connection: Connection, job: str) -> None:
    js = connection.link.client.jetstream()
    while not any(
        job in (info.config.filter_subject or "") for info in await js.consumers_info(STREAM)
    ):
        await asyncio.sleep(0.01)


def test_a_follower_whose_connection_is_closed_ends(nats_server: EmbeddedServer, job: str) -> None:
    async def scene() -> None:
        async with connected(nats_server) as connection:
            await connection.ensure_stream()
            records = records_of(job, 1)
            await append(connection, records)
            following = connection.follow(job)
            assert await take(following, 1) == records
            waiting = asyncio.create_task(take(following, 1))
            await asyncio.sleep(0)
            await connection.close()
            with pytest.raises(BrokerError, match="closed"):
                await waiting

    asyncio.run(scene())


def test_a_writer_that_raced_another_is_refused(nats_server: EmbeddedServer, job: str) -> None:
    async def scene() -> None:
        async with connected(nats_server) as one, connected(nats_server) as other:
            await one.ensure_stream()
            outcomes = await asyncio.gather(
                append(one, records_of(job, 1, writer="one")),
                append(other, records_of(job, 1, writer="other")),
                return_exceptions=True,
            )
            assert sorted(type(outcome).__name__ for outcome in outcomes) == [
                "StaleWriterError",
                "int",
            ]
            assert len(await one.read_job(job)) == 1

    asyncio.run(scene())
