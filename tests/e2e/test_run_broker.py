"""``drainfsm run`` and the shared log: whole in the end, whatever the server does meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

import msgspec
import pytest

from drainfsm.cli.main import main
from drainfsm.core import events as e
from drainfsm.core.budget import Allowances
from drainfsm.core.codec import encode_lines
from drainfsm.core.records import Record
from drainfsm.core.state import Phase
from drainfsm.errors import BrokerError
from drainfsm.log import NatsServer, connect
from drainfsm.log.authority import CONFIG
from drainfsm.log.embedded import EmbeddedServer, server_binary
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.paths import read_run_info
from drainfsm_kit.nats_servers import nats_server
from drainfsm_kit.running import ROOMY, RunningJob, running_job


def stream(url: NatsServer | str, job: RunningJob) -> list[Record]:
    async def read() -> list[Record]:
        connection = await connect(url, timeout_s=30)
        try:
            return list(await connection.read_job(job.job))
        finally:
            await connection.close()

    return asyncio.run(read())


def records_in(url: str, job: RunningJob) -> list[Record]:
    """The same of a server that may not have the stream yet."""
    try:
        return stream(url, job)
    except BrokerError:
        return []


def address(job: RunningJob) -> str:
    """Of the server that the agent started."""

    def found() -> str | None:
        info = read_run_info(job.state_dir, job.job)
        return info.nats_url or None if info is not None else None

    return job.wait(found, what="address of the server in run.json")


@pytest.mark.parametrize("when", [e.NoticeReceived, e.StopStepAgreed, e.ManifestPublished])
def test_a_drain_of_two_nodes_completes_with_the_server_killed_in_the_middle(
    tmp_path: Path, when: type[e.Fact]
) -> None:
    server = EmbeddedServer.start(tmp_path / "nats")
    with running_job(tmp_path, nnodes=2, nats=server.url) as job:
        job.allowances, job.grace_s = ROOMY, 120.0
        job.start_toys("--save-s", "0.5")
        job.wait_for(e.HealthyStepReached)
        job.agents[1].signal()
        job.wait(lambda: job.find(when) or None, what=when.__name__)  # type: ignore[type-var]
        server.kill()
        assert [agent.wait() for agent in job.agents] == [75, 75]
        assert job.state().phase is Phase.EXITED
        assert job.find(e.ManifestPublished) != []

        server = EmbeddedServer.start(tmp_path / "nats", port=server.port)
        job.start_toys("--steps", "200")
        assert [agent.wait() for agent in job.agents[2:]] == [0, 0]
        assert stream(server.url, job) == [*job.records(1), *job.records(2)]
    server.stop()


def test_the_embedded_server_holds_the_log_and_ends_with_the_agent(tmp_path: Path) -> None:
    with running_job(tmp_path, nats="") as job:
        agent = job.start(job.toy(), allowances=ROOMY, grace_s=120.0)
        job.wait_for(e.HealthyStepReached)
        address(job)
        info = read_run_info(job.state_dir, job.job)
        assert info is not None
        assert info.pid == agent.process.pid
        agent.signal()
        assert agent.wait() == 75
        job.wait_until_gone()
        server = EmbeddedServer.start(job.state_dir / job.job / "nats")
        assert stream(server.url, job) == job.records()
        server.stop()


def test_an_agent_ships_by_a_credentials_file_which_the_job_is_not_told_of(tmp_path: Path) -> None:
    keys, seen = tmp_path / "keys", tmp_path / "seen"
    with running_job(tmp_path / "job", nats="") as job:
        assert main(["auth", "init", "-o", str(keys), "--job", job.job]) == 0
        with nats_server(tmp_path / "nats", include=keys / CONFIG) as address:
            creds = {name: str(keys / f"{name}.creds") for name in (f"agent-{job.job}", "admin")}
            job.nats = f"nats://{address}"
            assert main(["stream", "init", "--nats", job.nats, "--nats-creds", creds["admin"]]) == 0
            access = {"nats_creds": creds[f"agent-{job.job}"]}
            for _ in range(2):  # the second attempt asks the stream for what the first has left
                agent = job.start(["sh", "-c", f"env > {seen}"], settings=access)
                assert agent.wait() == 0, agent.output()
                assert "Violation" not in agent.output()
            server = NatsServer(url=job.nats, creds=creds["admin"])
            assert stream(server, job) == [*job.records(1), *job.records(2)]
    assert "creds" not in seen.read_text()


def test_the_log_of_a_machine_that_is_gone_is_beside_the_checkpoints(tmp_path: Path) -> None:
    with running_job(tmp_path / "job") as job:
        agent = job.start(job.toy(), allowances=ROOMY, grace_s=120.0)
        job.wait_for(e.HealthyStepReached)
        agent.signal()
        assert agent.wait() == 75, agent.output()
        assert "under log/ in the store" in agent.output()
        records = job.records()
        shutil.rmtree(job.state_dir)
        server = EmbeddedServer.start(tmp_path / "nats")
        argv = ["--job", job.job, "--store", job.store_url]
        for _ in range(2):
            assert main(["import", *argv, "--nats", server.url]) == 0
        assert stream(server.url, job) == records
        assert main(["verify", *argv, "--nats", server.url]) == 0
        server.stop()


def test_the_log_of_an_embedded_server_outlives_its_machine(tmp_path: Path) -> None:
    with running_job(tmp_path / "here", nats="") as job:
        agent = job.start(job.toy(), allowances=ROOMY, grace_s=120.0)
        job.wait_for(e.HealthyStepReached)
        address(job)
        agent.signal()
        assert agent.wait() == 75, agent.output()
        assert "did not reach" not in agent.output()
        records, sample = job.records(), job.find(e.ManifestPublished)[0].sample
        shutil.rmtree(job.state_dir)
        argv = ["--job", job.job, "--store", job.store_url, "--state-dir", str(job.state_dir)]
        exported = tmp_path / "exported.jsonl"
        assert main(["export", *argv, "-o", str(exported)]) == 0
        assert exported.read_bytes() == encode_lines(records)
        with running_job(tmp_path / "there", nats="") as other:
            other.job = job.job
            again = other.start(job.toy("--steps", "1"), settings={"store": str(job.store)})
            assert again.wait() == 0
            assert other.find(e.AttemptStarted, epoch=2)[0].samples == (sample,)


def test_what_is_left_of_the_exit_margin_is_for_a_server_that_was_there(tmp_path: Path) -> None:
    server = EmbeddedServer.start(tmp_path / "nats")
    with running_job(tmp_path / "job", nats=server.url) as job:
        margin = msgspec.structs.replace(ROOMY, exit_margin_ms=60_000)
        agent = job.start(job.toy(), allowances=margin, grace_s=180.0)
        job.wait_for(e.HealthyStepReached)
        job.wait(lambda: records_in(server.url, job) or None, what="a record in the stream")
        agent.signal()
        job.wait(lambda: job.find(e.NoticeReceived) or None, what="the notice")
        server.kill()
        job.wait(lambda: job.find(e.Exited) or None, what="the end of the drain")
        time.sleep(3.0)  # longer than a server that was never there is waited for
        server = EmbeddedServer.start(tmp_path / "nats", port=server.port)
        assert agent.wait() == 75, agent.output()
        assert "did not reach the stream" not in agent.output()
        assert stream(server.url, job) == job.records()
        server.stop()


def test_a_notice_while_the_embedded_server_starts_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no process of the job, from its first instant on."""
    slow = tmp_path / "bin" / "nats-server"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 3\nexec {server_binary()} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=os.pathsep)
    with running_job(tmp_path, nats="") as job:
        agent = job.start(["sleep", "600"], allowances=ROOMY, grace_s=120.0)
        job.wait(lambda: "from the beginning" in agent.output() or None, what="the claim")
        agent.signal()
        assert agent.wait() == 75, agent.output()
        assert "is forwarded to 1 process(es)" in agent.output()
        assert "nats-server ended" not in agent.output()


def test_an_embedded_server_that_hangs_costs_no_more_than_is_left_of_the_exit_margin(
    tmp_path: Path,
) -> None:
    with running_job(tmp_path, nats="") as job:
        agent = job.start(
            ["sleep", "600"],
            allowances=Allowances(exit_margin_ms=1_500, clock_skew_ms=150),
        )
        url = address(job)
        job.wait(lambda: records_in(url, job) or None, what="a record in the stream")
        (ports,) = (job.state_dir / job.job / "nats").glob("*.ports")
        os.kill(int(ports.stem.rsplit("_", 1)[1]), signal.SIGSTOP)
        job.notify(in_s=3.0)
        assert agent.wait() == 75, agent.output()
        ended_unix_ms = Clock().now_unix_ms()
        (noticed,) = job.find(e.NoticeReceived)
        assert ended_unix_ms < noticed.effective_deadline_unix_ms, agent.output()
        job.wait_until_gone()
        assert job.state().phase is Phase.EXITED


def test_a_replacement_on_another_machine_knows_from_the_stream_how_long_saves_take(
    tmp_path: Path, nats_server: EmbeddedServer
) -> None:
    with running_job(tmp_path / "here", nats=nats_server.url) as job:
        agent = job.start(job.toy(), allowances=ROOMY, grace_s=120.0)
        job.wait_for(e.HealthyStepReached)
        agent.signal()
        assert agent.wait() == 75
        sample = job.find(e.ManifestPublished)[0].sample
        with running_job(tmp_path / "there", nats=nats_server.url) as other:
            other.job = job.job
            again = other.start(job.toy("--steps", "1"), settings={"store": str(job.store)})
            assert again.wait() == 0
            assert other.find(e.AttemptStarted, epoch=2)[0].samples == (sample,)
