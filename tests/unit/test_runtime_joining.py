"""Agents join the coordinator over TCP: the token, the version, the node's rank."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.errors import (
    AuthenticationError,
    ConfigError,
    CoordinatorLostError,
    NodeRankTakenError,
    ProtocolError,
    StartRefusedError,
)
from drainfsm.runtime.agent import coordinator_link
from drainfsm.runtime.agent.coordinator_link import TcpLink, decline, join
from drainfsm.runtime.agent.start import refusal_of
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt import claim_attempt
from drainfsm.runtime.coordinator.coordinator import Coordinator
from drainfsm.runtime.coordinator.node_server import NodeServer, bind
from drainfsm.runtime.threads import Tasks
from drainfsm.runtime.wire import handshake
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire.frames import Codec
from drainfsm.runtime.wire.streams import read_message, write_message
from drainfsm_kit.nats_servers import certificate
from drainfsm_kit.running import free_port
from drainfsm_kit.tcp import serving

HEARD_S = 30.0


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig(
        job="job",
        store=str(tmp_path / "store"),
        state_dir=tmp_path / "state",
        command=("true",),
        nnodes=3,
        coordinator=f"127.0.0.1:{free_port()}",
        token="secret",
        attach_s=0.5,
    )


def node(config: RunConfig, node_rank: int, **changes: Any) -> RunConfig:
    return replace(config, node_rank=node_rank, **changes)


@contextlib.asynccontextmanager
async def coordinating(
    config: RunConfig, said: list[str] | None = None
) -> AsyncIterator[Coordinator]:
    clock, said = Clock(), list[str]() if said is None else said
    bound = bind(config)
    attempt = claim_attempt(config, clock, warn=said.append)
    coordinator = Coordinator(attempt, config, clock, warn=said.append)
    hub = NodeServer(config, warn=said.append)
    await hub.listen(bound)
    hub.admit(coordinator)
    tasks = Tasks(said.append)

    async def run() -> None:
        await coordinator.run()

    tasks.start(run())
    try:
        yield coordinator
    finally:
        await hub.close()
        await tasks.cancel()
        attempt.journal.close()
    assert not [text for text in said if "a bug" in text], said


async def joined(config: RunConfig) -> TcpLink:
    return await join(config, warn=lambda text: None)


def test_an_agent_with_the_token_is_let_in_and_told_what_to_run_with(config: RunConfig) -> None:
    async def story() -> None:
        async with coordinating(config) as coordinator:
            link = await joined(node(config, 1))
            assert (link.welcome.epoch, link.welcome.job_id) == (1, "job")
            assert coordinator.has_joined(1)
            assert not coordinator.has_joined(2)
            link.close()

    asyncio.run(story())


@contextlib.asynccontextmanager
async def gathering(config: RunConfig) -> AsyncIterator[tuple[NodeServer, asyncio.Future[None]]]:
    """A node 0 that waits for the others, before it claims."""
    server = NodeServer(config, warn=lambda text: None)
    await server.listen(bind(config))
    gathered = asyncio.ensure_future(server.gather())
    try:
        yield server, gathered
    finally:
        gathered.cancel()
        await asyncio.wait({gathered})
        await server.close()


def test_the_job_is_claimed_once_every_node_is_there(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: whoever waits is told that it is not in vain."""
    monkeypatch.setattr(coordinator_link, "HANDSHAKE_S", 0.3)
    patient = replace(config, attach_s=HEARD_S, heartbeat_s=0.1, silence_s=0.3)

    async def story() -> None:
        async with gathering(patient) as (server, gathered):
            early = asyncio.ensure_future(joined(node(patient, 1)))
            gone = asyncio.ensure_future(joined(node(patient, 2)))
            await asyncio.wait_for(asyncio.shield(gathered), HEARD_S)
            gone.cancel()
            again = asyncio.ensure_future(server.gather())
            await asyncio.wait({gone})
            done, _ = await asyncio.wait({early}, timeout=1.0)
            assert not done, "it waits for the claim"
            late = asyncio.ensure_future(joined(node(patient, 2)))
            await asyncio.wait_for(again, HEARD_S)
            attempt = claim_attempt(patient, Clock(), warn=lambda text: None)
            coordinator = Coordinator(attempt, patient, Clock(), warn=lambda text: None)
            server.admit(coordinator)
            for link in await asyncio.wait_for(asyncio.gather(early, late), HEARD_S):
                assert link.welcome.epoch == 1
                assert coordinator.has_joined(1)
                link.close()
            attempt.journal.close()

    asyncio.run(story())


def test_a_node_that_goes_before_the_claim_is_waited_for_again(config: RunConfig) -> None:
    patient = replace(config, attach_s=HEARD_S)

    async def story() -> None:
        async with gathering(patient) as (_, gathered):
            gone = asyncio.ensure_future(joined(node(patient, 1)))
            await asyncio.wait({gone}, timeout=0.5)
            gone.cancel()
            await asyncio.wait({gone})
            there = [asyncio.ensure_future(joined(node(patient, 2)))]
            done, _ = await asyncio.wait({gathered}, timeout=1.0)
            assert not done, "node 1 has gone"
            there.append(asyncio.ensure_future(joined(node(patient, 1))))
            await asyncio.wait_for(gathered, HEARD_S)
            for one in there:
                one.cancel()

    asyncio.run(story())


async def refused(
    config: RunConfig, *, others: Sequence[int]
) -> tuple[StartRefusedError, list[StartRefusedError]]:
    """What node 0 says, and what the others are told, where a start comes to nothing."""
    async with gathering(config) as (server, gathered):
        waiting = [asyncio.ensure_future(joined(node(config, one))) for one in others]
        await asyncio.wait({gathered}, timeout=HEARD_S)
        error = gathered.exception()
        assert isinstance(error, StartRefusedError)
        await server.turn_away(refusal_of(error), timeout_s=0.5)
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, StartRefusedError) for one in told), told
        return error, [one for one in told if isinstance(one, StartRefusedError)]


def test_a_node_that_does_not_come_is_named_and_nothing_begins(config: RunConfig) -> None:
    error, told = asyncio.run(refused(config, others=(1,)))
    assert "node 2 did not come within 0.5 s" in str(error)
    assert [(one.reason, one.exit_code) for one in told] == [(error.reason, 75)]


def test_a_node_that_cannot_run_its_part_ends_the_start_at_once(config: RunConfig) -> None:
    patient = replace(config, attach_s=HEARD_S)
    wrong = ConfigError("[adapters.aws] poll_s: must be less than 5")

    async def story() -> None:
        declining = asyncio.ensure_future(decline(node(patient, 2), refusal_of(wrong)))
        error, told = await refused(patient, others=(1,))
        await asyncio.wait_for(declining, HEARD_S)
        assert error.reason == f"node 2: {wrong}"
        assert [(one.reason, one.exit_code) for one in told] == [(error.reason, 2)]

    asyncio.run(story())


def test_a_node_that_declines_too_late_is_no_part_of_the_attempt(config: RunConfig) -> None:
    async def story() -> None:
        async with coordinating(config) as coordinator:
            wrong = refusal_of(ConfigError("no such option"))
            await asyncio.wait_for(decline(node(config, 2), wrong), HEARD_S)
            assert not coordinator.has_joined(2)
            assert not coordinator.state.phase.over

    asyncio.run(story())


def test_only_a_notice_that_was_given_is_taken_back(config: RunConfig) -> None:
    answers: list[n.NoticeAnswer] = []
    heard = asyncio.Event()

    def told(message: Any) -> None:
        if isinstance(message, n.NoticeAnswer):
            answers.append(message)
            heard.set()

    async def said(coordinator: Coordinator, message: Any) -> n.NoticeAnswer:
        heard.clear()
        coordinator.on_node(0, message)
        await asyncio.wait_for(heard.wait(), HEARD_S)
        return answers[-1]

    def withdrawal(native_id: str) -> n.NodeWithdrawal:
        return n.NodeWithdrawal(ask=1, source="notify", native_id=native_id, reason="")

    async def story() -> None:
        async with coordinating(config) as coordinator:
            coordinator.join(0, told)
            answer = await said(coordinator, withdrawal("typo"))
            assert answer.error == "there is no notice notify/typo to take back; known: none"
            now_unix_ms = Clock().now_unix_ms()
            notice = Notice(
                source="notify",
                native_id="given",
                cause=Cause("test"),
                notice_class=NoticeClass.SOFT,
                deadline_unix_ms=now_unix_ms + 3_600_000,
                received_unix_ms=now_unix_ms,
            )
            assert not (await said(coordinator, n.NodeNotice(ask=2, notice=notice))).error
            answer = await said(coordinator, withdrawal("typo"))
            assert answer.error.endswith("notify/typo to take back; known: notify/given")
            answer = await said(coordinator, withdrawal("given"))
            assert (answer.error, answer.detail) == (
                "",
                "drain job/1/1 was called off, and the job goes on",
            )
            assert not (await said(coordinator, withdrawal("given"))).error

    asyncio.run(story())


@pytest.mark.parametrize(
    ("node_rank", "changes", "error", "text"),
    [
        (1, {"token": "guess"}, AuthenticationError, "wrong job token"),
        (1, {"job": "other"}, ProtocolError, "this is job job of 3 nodes, not other of 3"),
        (1, {"nnodes": 2}, ProtocolError, "not job of 2"),
        (2, {}, NodeRankTakenError, "node rank 2 is taken"),
    ],
)
def test_an_agent_that_does_not_belong_is_refused_with_the_reason(
    config: RunConfig, node_rank: int, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    async def story() -> None:
        async with coordinating(config):
            link = await joined(node(config, 2))
            with pytest.raises(error, match=text):
                await joined(node(config, node_rank, **changes))
            link.close()

    asyncio.run(story())


def test_a_node_rank_that_is_taken_ends_no_agent_at_once(config: RunConfig) -> None:
    """Whoever has it loses the attempt when it goes: the next one has room."""

    async def story() -> None:
        async with coordinating(config):
            holder, told = await joined(node(config, 2)), list[str]()
            patient = asyncio.ensure_future(
                join(node(config, 2, attach_s=HEARD_S), warn=told.append)
            )
            done, _ = await asyncio.wait({patient}, timeout=0.6)
            assert not done
            assert "node rank 2 is taken" in told[0]
            patient.cancel()
            holder.close()

    asyncio.run(story())


def test_strangers_keep_no_agent_out(config: RunConfig) -> None:
    """Many connections that say nothing: the oldest are dropped, and the log is not filled."""

    async def story() -> None:
        host, _, port = config.coordinator.rpartition(":")
        coordinator_said: list[str] = []
        async with coordinating(config, coordinator_said):
            idle = [await asyncio.open_connection(host, int(port)) for _ in range(300)]
            (await joined(node(config, 1, attach_s=HEARD_S))).close()
            assert sum(reader.at_eof() for reader, _ in idle) < 300
            dropped = idle[0][0].read()  # its challenge, and the end
            async with asyncio.timeout(HEARD_S):
                with contextlib.suppress(ConnectionError):
                    await dropped
            assert len(coordinator_said) < 40
            for _, writer in idle:
                writer.close()

    asyncio.run(story())


def test_a_coordinator_that_does_not_know_the_token_is_found_out(config: RunConfig) -> None:
    """It lets everybody in, to be told what they hear."""

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = n.Challenge(protocol_version=n.PROTOCOL_VERSION, nonce=handshake.nonce())
        write_message(writer, challenge)
        proof = await read_message(reader, Codec[n.Proof](n.Proof))
        assert proof is not None
        welcome: dict[str, Any] = {"job_id": "job", "epoch": 1, "attempt_id": "a", "store_url": ""}
        welcome["now_unix_ms"] = 0
        write_message(writer, n.Welcome(mac=proof.mac, settings=config.checkpoint, **welcome))
        await writer.drain()

    async def story() -> None:
        _, _, port = config.coordinator.rpartition(":")
        async with serving(impostor, port=int(port)):
            with pytest.raises(AuthenticationError, match="another job token"):
                await joined(node(config, 1))

    asyncio.run(story())


def test_a_proof_cannot_be_replayed_or_reflected() -> None:
    ours, theirs = handshake.nonce(), handshake.nonce()
    agent = handshake.proof("secret", by="agent", theirs=theirs, own=ours, claims="job/1/2")
    for other in (
        handshake.proof("secret", by="agent", theirs=handshake.nonce(), own=ours, claims="job/1/2"),
        handshake.proof("secret", by="coordinator", theirs=theirs, own=ours, claims="job/1/2"),
        handshake.proof("secret", by="agent", theirs=theirs, own=ours, claims="job/0/2"),
        handshake.proof("guess", by="agent", theirs=theirs, own=ours, claims="job/1/2"),
    ):
        assert not handshake.verify_mac(agent, other)


def test_no_coordinator_is_told_after_the_configured_time(config: RunConfig) -> None:
    with pytest.raises(CoordinatorLostError, match="is the agent of node 0 running"):
        asyncio.run(joined(node(config, 1)))


def test_a_coordinator_that_lets_agents_connect_and_says_nothing_is_given_up(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_link, "HANDSHAKE_S", 0.1)

    async def run() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        _, _, port = config.coordinator.rpartition(":")
        async with serving(silent, port=int(port)):
            await joined(node(config, 1))

    with pytest.raises(CoordinatorLostError, match="is the agent of node 0 running"):
        asyncio.run(run())


def test_an_address_that_is_in_use_is_told_before_the_job_is_claimed(config: RunConfig) -> None:
    bound = bind(config)
    with pytest.raises(NodeRankTakenError, match="another agent with node rank 0"):
        bind(config)
    bound.close()


def test_an_agent_whose_connection_ends_is_lost_and_the_attempt_with_it(config: RunConfig) -> None:
    async def story() -> None:
        async with coordinating(config) as coordinator:
            link = await joined(node(config, 1))
            link.close()
            async with asyncio.timeout(HEARD_S):
                while not coordinator.state.phase.over:
                    await asyncio.sleep(0.01)
            lost = [
                event
                for record in coordinator.attempt.journal.records
                for event in record.events
                if isinstance(event, e.AttemptLost)
            ]
            assert "the connection of node 1 ended" in lost[0].reason

    asyncio.run(story())


def test_a_coordinator_that_goes_away_is_a_lost_attempt(config: RunConfig) -> None:
    async def story() -> None:
        async with coordinating(config):
            link = await joined(node(config, 1))
        with pytest.raises(CoordinatorLostError):
            await link.run(lambda order: None)
        link.close()

    asyncio.run(story())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One self-signed certificate for both sides."""
    cert, key = certificate(tmp_path_factory.mktemp("tls"))
    return {"tls_cert": cert, "tls_key": key, "tls_ca": cert}


def test_with_tls_both_sides_show_a_certificate(
    config: RunConfig, certificates: dict[str, str]
) -> None:
    async def story() -> None:
        secured = replace(config, **certificates)
        async with coordinating(secured):
            link = await joined(node(secured, 1))
            assert link.welcome.epoch == 1
            link.close()

    asyncio.run(story())


def test_a_certificate_that_cannot_be_read_is_told(config: RunConfig, tmp_path: Path) -> None:
    missing = replace(config, tls_cert=str(tmp_path / "none"), tls_key=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="tls_cert"):
        handshake.server_tls(missing)
