"""The shipper against a real nats-server that is killed, hung, full, late, or never there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import DiscardPolicy

from drainfsm.core.codec import decode, encode
from drainfsm.core.fold import Fold
from drainfsm.core.records import Record, subject_of
from drainfsm.errors import BrokerError, RecordUnreadableError
from drainfsm.log import link
from drainfsm.log import shipper as shipper_module
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import STREAM, Connection, connect
from drainfsm.log.journal import Journal, journal_path
from drainfsm.log.shipper import Shipper, World
from drainfsm.testing.scenario import Scenario
from drainfsm_kit.logs import Proxy, records_of
from drainfsm_kit.nats_servers import nats_server

JOB = "job"
LONG_MS = 60_000
"""Far more than is needed: reached only if something hangs."""

NOWHERE = "nats://127.0.0.1:1"


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@contextlib.contextmanager
def journal_of(state_dir: Path, records: list[Record], *, epoch: int = 1) -> Iterator[Journal]:
    path = journal_path(state_dir, job_id=JOB, epoch=epoch)
    journal = Journal.open(path, job_id=JOB, epoch=epoch)
    try:
        if records:
            journal.append(*records)
        yield journal
    finally:
        journal.close()


@contextlib.asynccontextmanager
async def shipping(
    url: str, state_dir: Path, journal: Journal | None, told: list[str] | None = None
) -> AsyncIterator[Shipper]:
    heard = [] if told is None else told
    shipper = Shipper(
        server=url, state_dir=state_dir, job_id=JOB, on_error=heard.append, sync_always=True
    )
    if journal is not None:
        shipper.attach(journal)
    await shipper.start()
    try:
        yield shipper
    finally:
        await shipper.close(timeout_ms=5_000)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = await connect(url, timeout_s=30)
    try:
        yield connection
    finally:
        await connection.close()


async def stream(url: str) -> list[Record]:
    async with connected(url) as connection:
        return await connection.read_job(JOB)


async def until_told(told: list[str], pattern: str) -> str:
    while True:
        for message in told:
            if re.search(pattern, message):
                return message
        await asyncio.sleep(0.01)


async def restarted(server: EmbeddedServer) -> EmbeddedServer:
    def again() -> EmbeddedServer:
        server.kill()
        return EmbeddedServer.start(server.data_dir, port=server.port)

    return await asyncio.to_thread(again)


def through(proxy: Proxy, server: EmbeddedServer) -> str:
    return server.url.replace(f":{server.port}", f":{proxy.port}")


# --- in fair weather --------------------------------------------------------------------------


def test_what_the_journal_has_and_what_it_gets_is_shipped_in_order(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    records, told = records_of(JOB, 30), list[str]()

    async def scene(journal: Journal) -> None:
        async with shipping(own_nats_server.url, state_dir, journal, told) as shipper:
            assert await shipper.flush(timeout_ms=LONG_MS)
            assert await stream(own_nats_server.url) == records[:10]
            for record in records[10:]:
                journal.append(record)
                shipper.poke()
            assert await shipper.flush(timeout_ms=LONG_MS)
        assert await stream(own_nats_server.url) == records

    with journal_of(state_dir, records[:10]) as journal:
        asyncio.run(scene(journal))
    assert told == []


def test_earlier_attempts_go_first_and_later_ones_are_not_ours(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    first, second = records_of(JOB, 3), records_of(JOB, 2, epoch=2)
    tenth, live = records_of(JOB, 2, epoch=10), records_of(JOB, 3, epoch=11)

    async def scene(journal: Journal) -> None:
        async with shipping(own_nats_server.url, state_dir, journal) as shipper:
            assert await shipper.flush(timeout_ms=LONG_MS)
        assert await stream(own_nats_server.url) == [*first, *second, *tenth, *live]

    with contextlib.ExitStack() as stack:
        for records in (tenth, first, second, records_of(JOB, 1, epoch=12)):
            stack.enter_context(journal_of(state_dir, records, epoch=records[0].epoch))
        asyncio.run(scene(stack.enter_context(journal_of(state_dir, live, epoch=11))))


def test_only_what_the_stream_lacks_is_shipped(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    first, second = records_of(JOB, 4), records_of(JOB, 5, epoch=2)

    async def scene() -> None:
        async with connected(own_nats_server.url) as connection:
            await connection.ensure_stream()
            last = 0
            for record in second[:2]:
                last = await connection.append(record, after_sequence=last)
        for _ in range(2):
            async with shipping(own_nats_server.url, state_dir, None) as shipper:
                assert await shipper.flush(timeout_ms=LONG_MS)
            assert await stream(own_nats_server.url) == [*second[:2], *first, *second[2:]]

    with journal_of(state_dir, first), journal_of(state_dir, second, epoch=2):
        asyncio.run(scene())


def test_two_shippers_of_one_journal_ship_each_record_once(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    records = records_of(JOB, 100)

    async def scene(journal: Journal) -> None:
        async with (
            shipping(own_nats_server.url, state_dir, journal) as one,
            shipping(own_nats_server.url, state_dir, journal) as other,
        ):
            for record in records[50:]:
                journal.append(record)
                one.poke()
                other.poke()
                await asyncio.sleep(0)
            assert await one.flush(timeout_ms=LONG_MS)
            assert await other.flush(timeout_ms=LONG_MS)
        assert await stream(own_nats_server.url) == records

    with journal_of(state_dir, records[:50]) as journal:
        asyncio.run(scene(journal))


# --- the server away --------------------------------------------------------------------------


def test_a_server_that_is_never_there_is_in_nobodys_way(state_dir: Path) -> None:
    told: list[str] = []

    async def scene(journal: Journal) -> None:
        async with asyncio.timeout(30), shipping(NOWHERE, state_dir, journal, told) as shipper:
            assert not await shipper.flush(timeout_ms=0)
            assert not await shipper.flush(timeout_ms=3_000)
            journal.append(*records_of(JOB, 1, first=3))
            shipper.poke()
            assert not await shipper.flush(timeout_ms=100)

    with journal_of(state_dir, records_of(JOB, 3)) as journal:
        asyncio.run(scene(journal))
    assert any("cannot use the NATS server nats://127.0.0.1:1" in message for message in told)
    assert len(told) == len(set(told)) <= 3, "an outage is told once"


def test_a_server_that_stays_away_is_tried_ever_more_seldom_and_at_once_where_somebody_waits(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper_module, "RETRY_S", 0.001)
    monkeypatch.setattr(shipper_module, "RETRY_S_MAX", 3_600.0)
    tries = 0

    async def away(url: str, **_: object) -> Connection:
        nonlocal tries
        tries += 1
        raise BrokerError("away")

    async def scene(journal: Journal) -> None:
        shipper = Shipper(
            server=NOWHERE,
            state_dir=state_dir,
            job_id=JOB,
            on_error=lambda text: None,
            world=World(connect=away),
        )
        shipper.attach(journal)
        await shipper.start()
        while tries < 10:
            await asyncio.sleep(0.01)
        before = tries  # the next one would come in half a second, and then in one, two, four …
        assert not await shipper.flush(timeout_ms=50)
        assert tries > before
        await shipper.close(timeout_ms=5_000)

    with journal_of(state_dir, records_of(JOB, 3)) as journal:
        asyncio.run(scene(journal))


class Noted(dict[str, Any]):
    """Options of a client, and which waits they have named one after the other."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.waits: list[float] = []

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if name == "reconnect_time_wait":
            self.waits.append(value)


def test_a_connection_that_is_lost_is_looked_for_ever_more_seldom(
    own_nats_server: EmbeddedServer,
) -> None:
    async def scene() -> EmbeddedServer:
        server = own_nats_server
        async with connected(server.url) as connection:
            options = connection.link.client.options = Noted(connection.link.client.options)
            for _ in range(2):
                options.waits.clear()
                await asyncio.to_thread(server.kill)
                while 1.0 not in options.waits:
                    await asyncio.sleep(0.01)
                until = options.waits.index(1.0) + 1
                first = options.waits[:until][-3:]
                assert first == [0.25, 0.5, 1.0], "from the shortest on, after each loss"
                server = await restarted(server)
                while options.waits[-1] != 0.25:
                    await asyncio.sleep(0.01)
        return server

    asyncio.run(scene()).kill()


def test_closing_at_any_moment_is_bounded(own_nats_server: EmbeddedServer, state_dir: Path) -> None:
    async def scene(journal: Journal, *, turns: int, url: str) -> None:
        async with asyncio.timeout(30), shipping(url, state_dir, journal):
            for _ in range(turns):
                await asyncio.sleep(0)

    with journal_of(state_dir, records_of(JOB, 20)) as journal:
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144):
            for url in (own_nats_server.url, NOWHERE):
                asyncio.run(scene(journal, turns=turns, url=url))


def test_a_server_that_comes_late_gets_everything(tmp_path: Path, state_dir: Path) -> None:
    records = records_of(JOB, 20)
    first = EmbeddedServer.start(tmp_path / "nats")
    first.kill()

    async def scene(journal: Journal) -> None:
        async with shipping(first.url, state_dir, journal) as shipper:
            assert not await shipper.flush(timeout_ms=200)
            server = await restarted(first)
            try:
                assert await shipper.flush(timeout_ms=LONG_MS)
                assert await stream(server.url) == records
            finally:
                server.kill()

    with journal_of(state_dir, records) as journal:
        asyncio.run(scene(journal))


def test_the_stream_is_whole_after_the_server_was_killed_again_and_again(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    records = records_of(JOB, 600)

    async def write(journal: Journal, shipper: Shipper) -> None:
        for record in records:
            journal.append(record)
            shipper.poke()
            await asyncio.sleep(0.001)

    async def scene(journal: Journal) -> None:
        server = own_nats_server
        async with shipping(server.url, state_dir, journal) as shipper:
            writing = asyncio.create_task(write(journal, shipper))
            while not writing.done():
                await asyncio.wait({writing}, timeout=0.2)
                server = await restarted(server)
            await writing
            assert await shipper.flush(timeout_ms=LONG_MS)
        assert await stream(server.url) == records
        server.kill()

    with journal_of(state_dir, []) as journal:
        asyncio.run(scene(journal))


def test_a_hung_server_is_in_nobodys_way_and_gets_everything_later(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    records = records_of(JOB, 6)

    async def scene(journal: Journal) -> None:
        async with shipping(own_nats_server.url, state_dir, journal) as shipper:
            assert await shipper.flush(timeout_ms=LONG_MS)
            os.kill(own_nats_server.pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(30):
                    journal.append(*records[2:4])
                    assert not await shipper.flush(timeout_ms=500)
                    async with shipping(own_nats_server.url, state_dir, journal) as other:
                        assert not await other.flush(timeout_ms=500)
            finally:
                os.kill(own_nats_server.pid, signal.SIGCONT)
            journal.append(*records[4:])
            assert await shipper.flush(timeout_ms=LONG_MS)
        assert await stream(own_nats_server.url) == records

    with journal_of(state_dir, records[:2]) as journal:
        asyncio.run(scene(journal))


@pytest.mark.parametrize("older", [False, True], ids=["store lost", "store of an older day"])
def test_a_server_that_lost_records_gets_them_again(
    tmp_path: Path, state_dir: Path, *, older: bool
) -> None:
    first, live = records_of(JOB, 5), records_of(JOB, 5, epoch=2)
    server = EmbeddedServer.start(tmp_path / "nats")
    store, old_store = server.data_dir / "store", tmp_path / "old"

    async def create_stream() -> None:
        async with connected(server.url) as admin:
            await admin.ensure_stream()

    if older:
        asyncio.run(create_stream())
        server.kill()
        shutil.copytree(store, old_store)
        server = EmbeddedServer.start(server.data_dir, port=server.port)

    def came_back() -> EmbeddedServer:
        server.kill()
        shutil.rmtree(store)
        if older:
            old_store.rename(store)
        return EmbeddedServer.start(server.data_dir, port=server.port)

    async def scene(journal: Journal) -> None:
        async with shipping(server.url, state_dir, journal) as shipper:
            assert await shipper.flush(timeout_ms=LONG_MS)
            assert await stream(server.url) == [*first, *live]
            again = await asyncio.to_thread(came_back)
            async with asyncio.timeout(LONG_MS / 1_000):
                while await stream_or_nothing(again.url) != [*first, *live]:
                    await asyncio.sleep(0.01)
            assert await shipper.flush(timeout_ms=LONG_MS)
            assert await stream(again.url) == [*first, *live]
            again.kill()

    with journal_of(state_dir, first), journal_of(state_dir, live, epoch=2) as journal:
        asyncio.run(scene(journal))


async def stream_or_nothing(url: str) -> list[Record]:
    try:
        return await stream(url)
    except BrokerError:
        return []


# --- doubt ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [True, False], ids=["connection lost", "answer lost"])
def test_a_record_whose_acknowledgement_was_lost_is_not_shipped_twice(
    own_nats_server: EmbeddedServer, state_dir: Path, monkeypatch: pytest.MonkeyPatch, *, cut: bool
) -> None:
    monkeypatch.setattr(link, "REQUEST_S", 5.0 if cut else 0.3)
    records = records_of(JOB, 12)

    async def scene(journal: Journal) -> None:
        async with (
            Proxy(to_port=own_nats_server.port) as proxy,
            connected(own_nats_server.url) as witness,
            shipping(through(proxy, own_nats_server), state_dir, journal) as shipper,
        ):
            for record in records:
                assert await shipper.flush(timeout_ms=LONG_MS)
                proxy.lose_answers = True
                journal.append(record)
                shipper.poke()
                await stored(witness, record)
                if cut:
                    proxy.cut()
                proxy.lose_answers = False
            assert await shipper.flush(timeout_ms=LONG_MS)
        assert await stream(own_nats_server.url) == records

    with journal_of(state_dir, []) as journal:
        asyncio.run(scene(journal))


async def stored(witness: Connection, record: Record) -> None:
    """Wait until it is the last of its subject."""
    subject = subject_of(job_id=record.job_id, epoch=record.epoch)
    while True:
        last = await witness.last(subject)
        if last is not None and last.data == encode(record):
            return


OWNER = """
import asyncio, sys
from pathlib import Path
from drainfsm.log.shipper import Shipper
async def main(url, state_dir):
    shipper = Shipper(server=url, state_dir=Path(state_dir), job_id="job", on_error=print)
    await shipper.start()
    await shipper.flush(timeout_ms=60_000)
    await asyncio.sleep(600)
asyncio.run(main(*sys.argv[1:]))
"""


def test_each_record_is_shipped_once_over_any_number_of_killed_processes(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    records = records_of(JOB, 400)
    command = [sys.executable, "-c", OWNER, own_nats_server.url, str(state_dir)]

    async def scene() -> None:
        async with connected(own_nats_server.url) as witness:
            await witness.ensure_stream()
            for until in (1, 60, 150, 151, 300):
                with subprocess.Popen(command) as owner:
                    await stored_at_least(witness, until)
                    owner.kill()
        found = await stream(own_nats_server.url)
        assert len(found) >= 300
        async with shipping(own_nats_server.url, state_dir, None) as shipper:
            assert await shipper.flush(timeout_ms=LONG_MS)
        assert await stream(own_nats_server.url) == records

    with journal_of(state_dir, records):
        asyncio.run(scene())


async def stored_at_least(witness: Connection, count: int) -> None:
    while True:
        last = await witness.last(subject_of(job_id=JOB, epoch=1))
        if last is not None and last.seq >= count:
            return
        await asyncio.sleep(0.001)


# --- what stands in the stream already --------------------------------------------------------


NESTED = b'{"a":' * 10_000
"""More levels than a decoder goes down."""


async def leak(url: str, data: bytes) -> None:
    """What a stale leader lets through: stored without its expectation having been checked."""
    async with connected(url) as connection:
        js = connection.link.client.jetstream()
        await js.publish(subject_of(job_id=JOB, epoch=1), data)


def test_a_leaked_record_is_skipped_by_the_fold(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    drain = Scenario().saving()
    drain.given(drain.staged(), drain.durable())
    history = drain.history

    async def scene(journal: Journal) -> None:
        async with shipping(own_nats_server.url, state_dir, journal) as shipper:
            assert await shipper.flush(timeout_ms=LONG_MS)
        repeat, stale = history[-2], records_of(JOB, 1, first=2, writer="stale")[0]
        await leak(own_nats_server.url, encode(repeat))
        await leak(own_nats_server.url, encode(stale))
        found = await stream(own_nats_server.url)
        assert found == [*history, repeat, stale]
        fold = Fold(job_id=JOB, epoch=1)
        assert [record for record in found if fold.read(record)] == history
        assert fold.state == drain.state

    with journal_of(state_dir, history) as journal:
        asyncio.run(scene(journal))


def test_shipping_goes_on_behind_what_was_leaked(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    drain = Scenario().saving()
    drain.given(drain.staged(), drain.durable())
    drain.given(drain.verified())
    history, url = drain.history, own_nats_server.url
    stale = encode(records_of(JOB, 1, first=1, writer="stale")[0])

    async def scene(journal: Journal) -> None:
        async with shipping(url, state_dir, journal) as shipper:
            assert await shipper.flush(timeout_ms=LONG_MS)
            for leaked in (encode(history[1]), stale, b"no record", NESTED):
                await leak(url, leaked)
                journal.append(history[journal.count])
                assert await shipper.flush(timeout_ms=LONG_MS)
            await leak(url, stale)
        async with shipping(url, state_dir, journal) as shipper:
            journal.append(*history[journal.count :])
            assert await shipper.flush(timeout_ms=LONG_MS)
        fold = Fold(job_id=JOB, epoch=1)
        counted = [record for record in await readable(url) if fold.read(record)]
        assert counted == history
        assert (fold.skipped, fold.state) == (3, drain.state)

    with journal_of(state_dir, history[:3]) as journal:
        asyncio.run(scene(journal))


def test_the_last_record_alone_in_the_stream_proves_nothing(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    """A late message of an earlier connection, to a server that came back with nothing."""
    history, url = Scenario().saving().history, own_nats_server.url

    async def scene(journal: Journal) -> None:
        async with connected(url) as connection:
            await connection.ensure_stream()
        await leak(url, encode(history[-1]))
        async with shipping(url, state_dir, journal) as shipper:
            assert await shipper.flush(timeout_ms=LONG_MS)
        fold = Fold(job_id=JOB, epoch=1)
        assert [record for record in await readable(url) if fold.read(record)] == history

    with journal_of(state_dir, history) as journal:
        asyncio.run(scene(journal))


async def readable(url: str) -> list[Record]:
    found = []
    async with connected(url) as connection:
        async for message in connection.messages(subject_of(job_id=JOB, epoch=1)):
            with contextlib.suppress(RecordUnreadableError):
                found.append(decode(message.data))
    return found


def test_another_job_of_the_same_name_is_told_and_not_mixed_in(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    foreign, told = records_of(JOB, 2, writer="foreign"), list[str]()
    second = records_of(JOB, 2, epoch=2)

    async def scene(journal: Journal) -> None:
        async with connected(own_nats_server.url) as connection:
            await connection.ensure_stream()
            last = 0
            for record in foreign:
                last = await connection.append(record, after_sequence=last)
        async with shipping(own_nats_server.url, state_dir, journal, told) as shipper:
            assert not await shipper.flush(timeout_ms=LONG_MS)
            assert not await shipper.flush(timeout_ms=LONG_MS)
        assert await stream(own_nats_server.url) == [*foreign, *second]

    with journal_of(state_dir, records_of(JOB, 3)), journal_of(state_dir, second, epoch=2) as live:
        asyncio.run(scene(live))
    (message,) = told
    assert "drainfsm.v1.job.1 holds record foreign-1-0 of another writer" in message


def test_a_damaged_earlier_journal_is_told_and_shipped_as_far_as_it_goes(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    first, second, told = records_of(JOB, 3), records_of(JOB, 2, epoch=2), list[str]()
    path = journal_path(state_dir, job_id=JOB, epoch=1)
    with journal_of(state_dir, []) as journal:
        for record in first:
            journal.append(record)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"follows":1', b'"follows":7'))

    async def scene(journal: Journal) -> None:
        async with shipping(own_nats_server.url, state_dir, journal, told) as shipper:
            assert not await shipper.flush(timeout_ms=LONG_MS)
        assert await stream(own_nats_server.url) == [first[0], *second]

    with journal_of(state_dir, second, epoch=2) as journal:
        asyncio.run(scene(journal))
    (message,) = told
    assert re.search(r"000001\.journal: .*checksum.*; the 1 records before it", message)


# --- a server that refuses --------------------------------------------------------------------


def test_a_full_stream_is_told_and_nothing_is_dropped(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    records, told = records_of(JOB, 9), list[str]()

    async def scene(journal: Journal) -> None:
        async with connected(own_nats_server.url) as admin:
            await admin.ensure_stream()
            js = admin.link.client.jetstream()
            config = (await js.stream_info(STREAM)).config
            await js.update_stream(config.evolve(max_msgs=4))
            async with shipping(own_nats_server.url, state_dir, journal, told) as shipper:
                await until_told(told, r"maximum messages exceeded; raise its limits")
                assert not await shipper.flush(timeout_ms=300)
                assert await stream(own_nats_server.url) == records[:4]
                await js.update_stream(config)
                assert await shipper.flush(timeout_ms=LONG_MS)
        assert await stream(own_nats_server.url) == records

    with journal_of(state_dir, records) as journal:
        asyncio.run(scene(journal))
    refused, nearly_full = told
    assert "refused record" in refused, "told once"
    assert "nearly full" in nearly_full


def test_a_stream_that_may_forget_is_told_and_gets_nothing_until_it_is_corrected(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    records, told = records_of(JOB, 3), list[str]()

    async def scene(journal: Journal) -> None:
        async with connected(own_nats_server.url) as admin:
            await admin.ensure_stream()
            js = admin.link.client.jetstream()
            config = (await js.stream_info(STREAM)).config
            await js.update_stream(config.evolve(discard=DiscardPolicy.OLD))
            async with shipping(own_nats_server.url, state_dir, journal, told) as shipper:
                await until_told(told, r"discard is 'old', not 'new'")
                assert await stream(own_nats_server.url) == []
                await js.update_stream(config)
                assert await shipper.flush(timeout_ms=LONG_MS)
        assert await stream(own_nats_server.url) == records

    with journal_of(state_dir, records) as journal:
        asyncio.run(scene(journal))


def test_one_record_too_large_keeps_no_other_attempt_waiting(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    large, second = records_of(JOB, 1, writer="x" * (9 << 20)), records_of(JOB, 2, epoch=2)
    told: list[str] = []

    async def scene(journal: Journal) -> None:
        async with shipping(own_nats_server.url, state_dir, journal, told) as shipper:
            await until_told(told, r"more than the server takes: raise `max_payload`")
            assert not await shipper.flush(timeout_ms=200)
            assert await stream(own_nats_server.url) == second

    with journal_of(state_dir, large), journal_of(state_dir, second, epoch=2) as journal:
        asyncio.run(scene(journal))


def test_a_denied_permission_is_told(tmp_path: Path, state_dir: Path) -> None:
    """The server says it to the connection, not to the request: that one just gets no answer."""
    users = [
        {"user": "admin", "password": "a"},
        {"user": "writer", "password": "w", "permissions": {"publish": {"deny": "drainfsm.>"}}},
    ]
    told: list[str] = []

    async def scene(journal: Journal, address: str) -> None:
        url = f"nats://writer:w@{address}"
        async with shipping(url, state_dir, journal, told) as shipper:
            await until_told(told, r"may not publish drainfsm\.v1\.job")
            assert not await shipper.flush(timeout_ms=100)
        assert await stream(f"nats://admin:a@{address}") == []

    with (
        nats_server(tmp_path / "server", {"authorization": {"users": users}}) as address,
        journal_of(state_dir, records_of(JOB, 1)) as journal,
    ):
        asyncio.run(scene(journal, address))


def test_what_may_be_lost_of_the_stream_is_told_once(
    own_nats_server: EmbeddedServer, state_dir: Path
) -> None:
    told: list[str] = []

    async def scene(journal: Journal) -> None:
        url = own_nats_server.url
        shipper = Shipper(server=url, state_dir=state_dir, job_id=JOB, on_error=told.append)
        shipper.attach(journal)
        await shipper.start()
        assert await shipper.flush(timeout_ms=LONG_MS)
        await shipper.close(timeout_ms=5_000)

    with journal_of(state_dir, records_of(JOB, 1)) as journal:
        asyncio.run(scene(journal))
    (message,) = told
    assert message.startswith("warning: stream DRAINFSM has 1 replica, and its server may not sync")
