"""What ``drainfsm auth init`` lets whom do, against a real server: who, what, answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats.errors
import pytest

from drainfsm.cli.main import main
from drainfsm.core.codec import encode
from drainfsm.errors import BrokerError
from drainfsm.log import Connection, NatsServer, connect
from drainfsm.log.authority import CONFIG
from drainfsm.log.jetstream import STREAM
from drainfsm.log.journal import Journal, journal_path
from drainfsm.log.server import READERS_INBOX, agents_inbox
from drainfsm.log.shipper import Shipper
from drainfsm_kit.logs import records_of
from drainfsm_kit.nats_servers import nats_server

JOB, OTHER = "llm", "other"
SUBJECT = f"drainfsm.v1.{JOB}.1"
REFUSED_S = 0.5
"""Of requests that get no answer; whoever may do it has one in milliseconds."""


class Users:
    """A server, and who is who on it."""

    def __init__(self, directory: Path, address: str, *, kind: str) -> None:
        self._directory = directory
        self._address = address
        self._kind = kind

    def server(self, name: str) -> NatsServer:
        url = f"nats://{self._address}"
        inboxes = {
            "agent": (f"agent-{JOB}", agents_inbox(JOB)),
            "other agent": (f"agent-{OTHER}", agents_inbox(OTHER)),
            "reader": ("reader", READERS_INBOX),
            "administrator": ("admin", ""),
        }
        if name == "stranger":
            return NatsServer(url=url)
        stem, inbox = inboxes[name]
        file = str(self._directory / f"{stem}.{self._kind}")
        if self._kind == "nk":
            return NatsServer(url=url, nkey=file, inbox_prefix=inbox)
        return NatsServer(url=url, creds=file, inbox_prefix=inbox)

    @contextlib.asynccontextmanager
    async def connected(self, name: str) -> AsyncIterator[Connection]:
        connection = await connect(self.server(name), timeout_s=30)
        try:
            yield connection
        finally:
            await connection.close()


@pytest.fixture(scope="module", params=["creds", "nk"])
def users(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Users]:
    directory = tmp_path_factory.mktemp("authority")
    keys = directory / "keys"
    how = ["--nkeys"] if request.param == "nk" else []
    assert main(["auth", "init", "-o", str(keys), "--job", JOB, "--job", OTHER, *how]) == 0
    with nats_server(directory / "server", include=keys / CONFIG) as address:
        found = Users(keys, address, kind=request.param)
        asyncio.run(_fill(found))
        yield found


async def _fill(users: Users) -> None:
    async with users.connected("administrator") as admin:
        await admin.ensure_stream()
        after = 0
        for record in records_of(JOB, 3):
            after = await admin.append(record, after_sequence=after)


def _consumer(subject: str) -> tuple[str, bytes]:
    name = uuid.uuid4().hex
    config = {"name": name, "ack_policy": "none", "filter_subject": subject, "mem_storage": True}
    body = json.dumps({"stream_name": STREAM, "config": config}).encode()
    return f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}.{subject}", body


_ALTERED = json.dumps({"name": STREAM, "subjects": ["drainfsm.v1.>"], "max_age": 10**9}).encode()
_AGENT = f"drainfsm.v1.{JOB}.*"
REQUESTS = {
    "publish": (SUBJECT, b"no record", "agent"),
    "publish as the other job": (f"drainfsm.v1.{OTHER}.1", b"no record", "other agent"),
    "read by a consumer": (*_consumer(_AGENT), "agent reader"),
    "read all by a consumer": (*_consumer("drainfsm.v1.>"), "reader"),
    "read directly": (f"$JS.API.DIRECT.GET.{STREAM}", b'{"seq":1}', "reader"),
    "read the last": (f"$JS.API.DIRECT.GET.{STREAM}.{SUBJECT}", b"", ""),
    "read by the leader": (f"$JS.API.STREAM.MSG.GET.{STREAM}", b'{"seq":1}', ""),
    "see the configuration": (f"$JS.API.STREAM.INFO.{STREAM}", b"", "agent reader other agent"),
    "name consumers": (f"$JS.API.CONSUMER.NAMES.{STREAM}", b"", ""),
    "take from a consumer": (f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.some", b"1", ""),
    "delete a consumer": (f"$JS.API.CONSUMER.DELETE.{STREAM}.some", b"", ""),
    "create a stream": ("$JS.API.STREAM.CREATE.OWN", b'{"name":"OWN","subjects":["own"]}', ""),
    "alter": (f"$JS.API.STREAM.UPDATE.{STREAM}", _ALTERED, ""),
    "purge": (f"$JS.API.STREAM.PURGE.{STREAM}", b"", ""),
    "delete a record": (f"$JS.API.STREAM.MSG.DELETE.{STREAM}", b'{"seq":1}', ""),
    "delete the stream": (f"$JS.API.STREAM.DELETE.{STREAM}", b"", ""),
    "move its leader": (f"$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}", b"", ""),
}
"""By what is tried: subject, body, and who may do it besides administrators."""

USERS = ("agent", "other agent", "reader")


@pytest.mark.parametrize("what", REQUESTS)
def test_everybody_may_do_what_the_role_needs_and_nothing_else(users: Users, what: str) -> None:
    subject, body, allowed = REQUESTS[what]

    async def may(name: str) -> bool:
        async with users.connected(name) as connection:
            client = connection.link.client
            try:
                await client.request(subject, body, timeout=REFUSED_S)
            except nats.errors.TimeoutError:
                assert "permissions violation" in connection.link.last_error
                return False
            except nats.errors.NoRespondersError:
                pass
            return True

    async def scene() -> dict[str, bool]:
        return dict(zip(USERS, await asyncio.gather(*map(may, USERS)), strict=True))

    expected = {
        "agent": allowed.startswith("agent"),
        "other agent": "other agent" in allowed,
        "reader": "reader" in allowed,
    }
    assert asyncio.run(scene()) == expected


@pytest.mark.parametrize("name", USERS)
@pytest.mark.parametrize(
    "subject",
    ["drainfsm.v1.*.*", ">", "_INBOX.>", f"{agents_inbox('third')}.>", "$JS.EVENT.ADVISORY.>"],
)
def test_nobody_listens_to_what_is_for_others(users: Users, name: str, subject: str) -> None:
    async def scene() -> None:
        async with users.connected(name) as connection:
            client = connection.link.client
            await client.subscribe(subject)
            while "permissions violation for subscription" not in connection.link.last_error:
                await asyncio.sleep(0.01)

    asyncio.run(scene())


@pytest.mark.parametrize(
    "filters", [{"filter_subject": SUBJECT}, {"filter_subjects": [SUBJECT]}, {}]
)
def test_a_consumer_reads_no_more_than_its_request_names(
    users: Users, filters: dict[str, object]
) -> None:
    async def scene() -> None:
        async with users.connected("other agent") as connection:
            subject, body = _consumer(f"drainfsm.v1.{OTHER}.*")
            request = json.loads(body)
            del request["config"]["filter_subject"]
            request["config"] |= filters
            reply = await connection.link.client.request(
                subject, json.dumps(request).encode(), timeout=10
            )
            assert "error" in json.loads(reply.data)

    asyncio.run(scene())


def test_a_stranger_is_let_in_nowhere(users: Users) -> None:
    with pytest.raises(BrokerError, match="refuses the credentials"):
        asyncio.run(connect(users.server("stranger"), timeout_s=30))


def test_what_can_be_had_under_another_jobs_subject_is_an_answer_of_the_servers_own(
    users: Users,
) -> None:
    """Where to answer is not checked by a server. The text is never that of whoever asks."""

    async def scene() -> list[bytes]:
        async with users.connected("administrator") as admin:
            job = f"drainfsm.v1.{JOB}.*"
            before = [message.data async for message in admin.messages(job)]
            async with users.connected("other agent") as other:
                client, forged = other.link.client, encode(records_of(JOB, 1, writer="forged")[0])
                await client.publish(f"drainfsm.v1.{OTHER}.1", forged, reply=SUBJECT)
                await client.publish(f"$JS.API.DIRECT.GET.{STREAM}", b'{"seq":1}', reply=SUBJECT)
                subject, body = _consumer(f"drainfsm.v1.{OTHER}.*")
                request = json.loads(body)
                request["config"]["deliver_subject"] = SUBJECT
                reply = await client.request(subject, json.dumps(request).encode(), timeout=10)
                assert "forms a cycle" in json.loads(reply.data)["error"]["description"]
                await client.flush(10)
            return [message.data async for message in admin.messages(job)][len(before) :]

    for answer in asyncio.run(scene()):
        assert set(json.loads(answer)) == {"stream", "seq"}


def test_what_a_consumer_delivers_is_no_request(users: Users) -> None:
    """Where to deliver is not checked either, and the text is that of whoever wrote the record."""

    async def scene() -> None:
        async with users.connected("administrator") as admin, users.connected("other agent") as one:
            before, client = await admin.stream_info(), one.link.client
            for number, what in enumerate(("UPDATE", "DELETE", "PURGE"), start=1_000):
                config = before.config | {"description": "theirs"}
                body = json.dumps(config).encode() if what == "UPDATE" else b""
                written = f"drainfsm.v1.{OTHER}.{number}"
                await client.request(written, body, timeout=10)
                subject, request = _consumer(written)
                asked = json.loads(request)
                asked["config"]["deliver_subject"] = f"$JS.API.STREAM.{what}.{STREAM}"
                await client.request(subject, json.dumps(asked).encode(), timeout=10)
            await asyncio.sleep(1)
            after = await admin.stream_info()
        assert after.error is None
        assert after.config == before.config
        assert after.state.messages == before.state.messages + 3

    asyncio.run(scene())


def test_an_agent_ships_and_goes_on_with_no_more_rights_than_that(
    users: Users, tmp_path: Path
) -> None:
    records, told = records_of(OTHER, 5, epoch=7), list[str]()

    async def ship(journal: Journal) -> None:
        shipper = Shipper(
            server=users.server("other agent"),
            state_dir=tmp_path,
            job_id=OTHER,
            on_error=told.append,
            sync_always=True,
        )
        shipper.attach(journal)
        await shipper.start()
        assert await shipper.flush(timeout_ms=60_000)
        await shipper.close(timeout_ms=5_000)

    async def stored() -> list[object]:
        async with users.connected("reader") as reader:
            return list(await reader.read_subject(f"drainfsm.v1.{OTHER}.7"))

    path = journal_path(tmp_path, job_id=OTHER, epoch=7)
    with contextlib.closing(Journal.open(path, job_id=OTHER, epoch=7)) as journal:
        journal.append(*records[:2])
        asyncio.run(ship(journal))
        journal.append(*records[2:])
        asyncio.run(ship(journal))  # it learns first what the stream has
    assert told == []
    assert asyncio.run(stored()) == records


def test_a_stream_that_an_agent_may_not_create_is_asked_for(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert main(["auth", "init", "-o", str(keys), "--job", JOB]) == 0

    async def scene(users: Users) -> None:
        async with users.connected("agent") as agent:
            with pytest.raises(BrokerError, match=r"may not publish .*drainfsm stream init"):
                await agent.ensure_stream()

    with nats_server(tmp_path / "server", include=keys / CONFIG) as address:
        asyncio.run(scene(Users(keys, address, kind="creds")))


def test_a_second_call_adds_a_job_and_changes_nothing_else(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert main(["auth", "init", "-o", str(keys), "--job", JOB]) == 0
    before = {path.name: path.read_bytes() for path in keys.iterdir()}
    secret = [path for path in keys.iterdir() if path.suffix in (".creds", ".nk")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in secret)
    with nats_server(tmp_path / "server", include=keys / CONFIG) as address:
        assert main(["auth", "init", "-o", str(keys), "--job", OTHER]) == 0
        after = {path.name: path.read_bytes() for path in keys.iterdir()}
        assert {name: after[name] for name in before} == before
        assert set(after) - set(before) == {f"agent-{OTHER}.creds", f"agent-{OTHER}.pub"}

        async def scene(users: Users) -> None:
            async with users.connected("other agent") as other:
                assert other.link.connected, "the server knows users that are added"

        asyncio.run(scene(Users(keys, address, kind="creds")))


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("how", [[], ["--nkeys"]])
def test_secrets_are_their_owners_and_nobody_else_writes_any_file(
    tmp_path: Path, umask: int, how: list[str]
) -> None:
    before = os.umask(umask)
    try:
        for job in ("a", "b"):
            assert main(["auth", "init", "-o", str(tmp_path / "keys"), "--job", job, *how]) == 0
    finally:
        os.umask(before)
    for path in (tmp_path / "keys").iterdir():
        public = path.suffix in (".pub", ".conf")
        mode = 0o644 & ~umask if public else 0o600
        assert (path.name, stat.S_IMODE(path.stat().st_mode)) == (path.name, mode)


def test_public_keys_of_a_job_are_kept_when_it_gets_another(tmp_path: Path) -> None:
    argv = ["auth", "init", "-o", str(tmp_path), "--job", JOB]
    public = tmp_path / f"agent-{JOB}.pub"
    for kind, how in (("creds", []), ("nk", ["--nkeys"])):
        assert main([*argv, *how]) == 0
        first = public.read_text()
        public.unlink()  # made before there were such files
        assert main([*argv, *how]) == 0
        assert public.read_text() == first
        (tmp_path / f"agent-{JOB}.{kind}").unlink()
        assert main([*argv, *how]) == 0
        both = public.read_text().split()
        assert both[0] == first.strip()
        assert len(set(both)) == 2
        public.unlink()


def test_a_directory_with_other_keys_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "operator.nk").write_text("SUAKEYOFAUSER\n")
    assert main(["auth", "init", "-o", str(tmp_path)]) == 2
    assert "operator.nk is not the kind of key that belongs there" in capsys.readouterr().err
    assert main(["auth", "init", "-o", str(tmp_path), "--job", "a.b"]) == 2
    assert "not a job name" in capsys.readouterr().err
