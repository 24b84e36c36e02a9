"""Every way to show a real NATS server who one is, for the client that writes and the one that
reads; and what is told where it does not work, without the secret."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drainfsm.errors import BrokerError, ConfigError
from drainfsm.log import NatsServer, connect
from drainfsm.log.authority import CONFIG, write_credentials, write_users
from drainfsm.log.journal import Journal, journal_path
from drainfsm.log.link import Link
from drainfsm.log.server import public
from drainfsm.log.shipper import Shipper
from drainfsm.log.wire import Wire
from drainfsm_kit.logs import records_of
from drainfsm_kit.nats_servers import certificate, nats_server

SECRET = "p@ss/w:ord of somebody"

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """nats-py closes no connection of a failed try: let none of them be found in a later test."""
    yield
    gc.collect()


def written(path: Path, text: str) -> str:
    path.write_text(text + "\n")
    return str(path)


Way = tuple[NatsServer, NatsServer, dict[str, Any], Path | None]
"""What is let in, what is not (both without the address), and the server's configuration."""


def by_password(directory: Path) -> Way:
    server = NatsServer(url="", user="me", password_file=written(directory / "p", SECRET))
    wrong = replace(server, password_file=written(directory / "wrong", "wrong"))
    users = [{"user": "me", "password": SECRET}]
    return server, wrong, {"authorization": {"users": users}}, None


def by_token(directory: Path) -> Way:
    server = NatsServer(url="", token_file=written(directory / "t", SECRET))
    wrong = replace(server, token_file=written(directory / "wrong", "wrong"))
    return server, wrong, {"authorization": {"token": SECRET}}, None


def by_nkey(directory: Path) -> Way:
    write_users(directory / "a", [])
    write_users(directory / "b", [])
    server = NatsServer(url="", nkey=str(directory / "a" / "admin.nk"))
    wrong = NatsServer(url="", nkey=str(directory / "b" / "admin.nk"))
    return server, wrong, {}, directory / "a" / CONFIG


def by_creds(directory: Path) -> Way:
    write_credentials(directory / "a", [], issued_unix_s=1)
    write_credentials(directory / "b", [], issued_unix_s=1)
    server = NatsServer(url="", creds=str(directory / "a" / "admin.creds"))
    wrong = NatsServer(url="", creds=str(directory / "b" / "admin.creds"))
    return server, wrong, {}, directory / "a" / CONFIG


def by_tls(directory: Path) -> Way:
    cert, key = certificate(directory / "a")
    other, _ = certificate(directory / "b")
    tls = {"cert_file": cert, "key_file": key}
    return NatsServer(url="", tlsca=cert), NatsServer(url="", tlsca=other), {"tls": tls}, None


def by_certificate(directory: Path) -> Way:
    cert, key = certificate(directory / "a")
    other_cert, other_key = certificate(directory / "b")
    tls = {"cert_file": cert, "key_file": key, "ca_file": cert, "verify": True}
    server = NatsServer(url="", tlsca=cert, tlscert=cert, tlskey=key)
    return server, replace(server, tlscert=other_cert, tlskey=other_key), {"tls": tls}, None


WAYS = (by_password, by_token, by_nkey, by_creds, by_tls, by_certificate)


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[NatsServer, NatsServer]]:
    make: Callable[[Path], Way] = request.param
    right, wrong, config, include = make(tmp_path)
    with nats_server(tmp_path / "server", config, include=include) as address:
        url = f"nats://{address}"
        yield replace(right, url=url), replace(wrong, url=url)


def test_who_shows_the_right_thing_writes_and_reads_and_nobody_else(
    way: tuple[NatsServer, NatsServer],
) -> None:
    right, wrong = way
    records = records_of("job", 2)

    async def scene() -> None:
        connection = await connect(right, timeout_s=30)
        await connection.ensure_stream()
        first = await connection.append(records[0], after_sequence=0)
        await connection.append(records[1], after_sequence=first)
        assert await connection.read_job("job") == records
        assert [one.data async for one in connection.delivered("drainfsm.v1.job.*")]
        await connection.close()
        with pytest.raises(BrokerError) as told:
            await connect(wrong, timeout_s=2)
        with pytest.raises(BrokerError) as told_by_reader:
            await Wire.open(wrong, timeout_s=30)
        for error in (told, told_by_reader):
            assert SECRET not in str(error.value)
            assert "cannot" in str(error.value) or "refuses" in str(error.value)

    asyncio.run(scene())


def test_a_rotated_secret_counts_from_the_next_connection_on(tmp_path: Path) -> None:
    server, _, config, _ = by_token(tmp_path)
    Path(server.token_file).write_text("old")

    async def scene(server: NatsServer) -> None:
        with pytest.raises(BrokerError):
            await connect(server, timeout_s=30)
        Path(server.token_file).write_text(SECRET)
        await (await connect(server, timeout_s=30)).close()

    with nats_server(tmp_path / "server", config) as address:
        asyncio.run(scene(replace(server, url=f"nats://{address}")))


@pytest.mark.parametrize("scheme", ["nats", "tls"])
def test_a_server_that_offers_no_tls_is_refused_where_it_was_asked_for(
    tmp_path: Path, scheme: str
) -> None:
    cert, _ = certificate(tmp_path)
    server, _, config, _ = by_token(tmp_path)

    async def scene(server: NatsServer) -> None:
        with pytest.raises(BrokerError, match="offers no TLS"):
            await connect(server, timeout_s=2)
        with pytest.raises(BrokerError, match="offers no TLS"):
            await Wire.open(server, timeout_s=30)

    with nats_server(tmp_path / "server", config) as address:
        tlsca = cert if scheme == "nats" else ""
        asyncio.run(scene(replace(server, url=f"{scheme}://{address}", tlsca=tlsca)))


def test_a_server_that_leaves_tls_to_its_clients_gets_it(tmp_path: Path) -> None:
    server, _, config, _ = by_tls(tmp_path)
    config |= {"allow_non_tls": True}

    async def scene(server: NatsServer) -> None:
        connection = await connect(server, timeout_s=30)
        await connection.ensure_stream()
        assert await connection.read_job("job") == []
        transport = connection.link.client._transport
        assert transport is not None
        assert transport.at_eof() is False
        await connection.close()

    with nats_server(tmp_path / "server", config) as address:
        asyncio.run(scene(replace(server, url=f"nats://{address}")))


def test_answers_come_below_the_prefix_that_was_chosen(tmp_path: Path) -> None:
    permissions = {"publish": [">"], "subscribe": ["_INBOX.team.>"]}
    config = {
        "authorization": {"users": [{"user": "me", "password": SECRET, "permissions": permissions}]}
    }
    password = written(tmp_path / "p", SECRET)

    async def scene(server: NatsServer) -> None:
        connection = await connect(server, timeout_s=30)
        await connection.ensure_stream()
        assert await connection.read_job("job") == []
        await connection.close()

    with nats_server(tmp_path / "server", config) as address:
        url = f"nats://{address}"
        server = NatsServer(url=url, user="me", password_file=password)
        asyncio.run(scene(replace(server, inbox_prefix="_INBOX.team")))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"user": "me"}, "nats_user: belongs together with nats_password_file"),
        ({"password_file": "p"}, "nats_user: belongs together"),
        ({"tlskey": "k"}, "nats_tlscert: belongs together with nats_tlskey"),
        ({"nkey": "a", "creds": "b"}, "nats_creds: is one way too many, besides nats_nkey"),
        ({"nkey": "a", "url": "nats://t@h"}, "nats_nkey: is one way too many: the URL"),
        ({"nkey": "missing"}, "nats_nkey: missing: No such file"),
        ({"nkey": "garbage"}, "nats_nkey: garbage holds no nkey seed"),
        ({"creds": "garbage"}, "nats_creds: garbage holds no user JWT with its seed"),
        ({"creds": "halved"}, "nats_creds: halved holds no nkey seed"),
        ({"token_file": "empty"}, "nats_token_file: empty is empty"),
        ({"token_file": "binary"}, "nats_token_file: binary is not text"),
        ({"tlsca": "garbage"}, "nats_tlsca, nats_tlscert or nats_tlskey"),
        ({"inbox_prefix": "a.>"}, "nats_inbox_prefix: 'a.>' is not a subject"),
    ],
)
def test_what_will_not_do_is_known_before_anything_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    jwt = "-----BEGIN NATS USER JWT-----\ne30.e30.sig\n------END NATS USER JWT------\n"
    seed = "-----BEGIN USER NKEY SEED-----\nSUA\n------END USER NKEY SEED------\n"
    for name, text in (("garbage", "garbage"), ("empty", ""), ("halved", jwt + seed)):
        Path(name).write_text(text)
    Path("binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError) as error:
        NatsServer(**{"url": "nats://h", **options}).check()
    assert told in str(error.value)


def test_a_url_and_a_representation_show_no_password() -> None:
    server = NatsServer(url="nats://me:secret@a:1,nats://tok@b:2", password_file="/p")
    assert public(server) == "nats://a:1,nats://b:2"
    assert "secret" not in repr(server)


def test_signatures_are_those_of_the_seed(tmp_path: Path) -> None:
    write_users(tmp_path, [])
    server = NatsServer(url="nats://h", nkey=str(tmp_path / "admin.nk"))
    nonce = secrets.token_urlsafe(11)
    first, second = server.shown(nonce), server.shown(nonce)
    assert first == second
    assert len(base64.urlsafe_b64decode(first["sig"] + "==")) == 64
    assert first["sig"] != server.shown(nonce + "x")["sig"]


def test_a_secret_that_breaks_while_connected_is_no_end(tmp_path: Path) -> None:
    """A file that is being replaced: the link is looked for again as ever."""
    server, _, config, _ = by_token(tmp_path)

    async def scene(server: NatsServer) -> None:
        link = Link(server)
        await link.open(timeout_s=30)
        Path(server.token_file).write_text("")
        await link.client.force_reconnect()
        while "is empty" not in link.last_error:
            await asyncio.sleep(0.01)
        Path(server.token_file).write_text(SECRET)
        while not link.connected:
            await asyncio.sleep(0.01)
        await link.close()

    with nats_server(tmp_path / "server", config) as address:
        asyncio.run(scene(replace(server, url=f"nats://{address}")))


def test_a_file_that_is_away_for_a_moment_ends_no_shipper(tmp_path: Path) -> None:
    server, _, config, _ = by_token(tmp_path)
    Path(server.token_file).unlink()
    records, told = records_of("job", 2), list[str]()

    async def scene(server: NatsServer, journal: Journal) -> None:
        shipper = Shipper(
            server=server, state_dir=tmp_path / "state", job_id="job", on_error=told.append
        )
        shipper.attach(journal)
        await shipper.start()
        while not any("No such file" in text for text in told):
            await asyncio.sleep(0.01)
        Path(server.token_file).write_text(SECRET)
        assert await shipper.flush(timeout_ms=60_000)
        await shipper.close(timeout_ms=5_000)
        connection = await connect(server, timeout_s=30)
        assert await connection.read_job("job") == records
        await connection.close()

    path = journal_path(tmp_path / "state", job_id="job", epoch=1)
    with (
        nats_server(tmp_path / "server", config) as address,
        contextlib.closing(Journal.open(path, job_id="job", epoch=1)) as journal,
    ):
        journal.append(*records)
        asyncio.run(scene(replace(server, url=f"nats://{address}"), journal))
