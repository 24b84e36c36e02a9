"""NONE, UNKNOWN and PRESENT, on every cloud and for every way in which an endpoint fails."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from drainfsm.adapter import Cordon, NoticeSource, Requeuer
from drainfsm.core.notice import Cause, NoticeClass
from drainfsm.testing.adapter_contract import check_adapter, context_for
from drainfsm.testing.metadata import Fault, TencentMetadataServer
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_adapters.auto import FACTORIES
from drainfsm_adapters.auto import adapter as auto_adapter
from drainfsm_adapters.health import Health
from drainfsm_adapters.ledger import NONE, Observed, Reading
from drainfsm_adapters.polling import CONFIRM_S, HELD_S, UNKNOWN_POLL_S, Signal, _pause_s, _read
from drainfsm_kit.cloud_stage import STAGES, adapter_on

CLOUDS = tuple(STAGES)


async def through_every_fault(cloud: str) -> RecordingSink:
    """One notice first; then each fault in turn is waited for, and its recovery."""
    stage = STAGES[cloud]()
    with stage.server as server:
        adapter = adapter_on(stage, {"unknown_s": "0.2", "timeout_s": "0.7", "poll_s": "1"})
        async with watching(adapter) as sink:
            await asyncio.sleep(0.3)
            await stage.interrupt(120_000)
            await sink.until(lambda: bool(sink.notices))
            for fault in Fault:
                server.fail(fault)
                await sink.until(lambda: bool(sink.unknown_now))
                server.heal()
                await sink.until(lambda: not sink.unknown_now)
            return sink


@pytest.fixture(scope="module")
def faulted() -> dict[str, RecordingSink]:
    async def all_at_once() -> list[RecordingSink]:
        return await asyncio.gather(*(through_every_fault(cloud) for cloud in CLOUDS))

    return dict(zip(CLOUDS, asyncio.run(all_at_once()), strict=True))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_failure_is_unknown_and_none_of_them_clears_a_notice(
    cloud: str, faulted: dict[str, RecordingSink]
) -> None:
    sink = faulted[cloud]
    assert len(sink.identities) == 1, "after each recovery the notice is still there: no news"
    assert sink.withdrawals == []
    assert all(silence.source.startswith(f"{cloud}/") for silence in sink.silences)


@pytest.mark.parametrize("cloud", [*CLOUDS, "auto"])
def test_every_adapter_keeps_the_contract_with_nothing_there(
    cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in (made() for made in STAGES.values()):
        with stage.server:
            pass  # a port on which nothing listens from now on
        monkeypatch.setenv(stage.server.variable, stage.server.endpoint)
    factory = auto_adapter if cloud == "auto" else FACTORIES[cloud]
    sink = asyncio.run(check_adapter(factory, context_for()))
    assert sink.notices == []


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_adapter_keeps_the_contract_with_a_notice_there(cloud: str) -> None:
    async def run() -> RecordingSink:
        stage = STAGES[cloud]()
        with stage.server:
            await stage.interrupt(60_000)
            return await check_adapter(lambda _: adapter_on(stage), context_for(), notice_count=1)

    sink = asyncio.run(run())
    assert [notice.notice_class for notice in sink.notices] == [NoticeClass.HARD]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_cloud_is_a_source_and_has_no_cordon(cloud: str) -> None:
    adapter = adapter_on(STAGES[cloud]())
    assert isinstance(adapter, NoticeSource)
    assert not isinstance(adapter, Cordon)
    assert isinstance(adapter, Requeuer) == (cloud == "azure")


def test_an_instant_of_utc_plus_8_is_no_instant_of_utc() -> None:
    """Eight hours off would be a notice that nobody acts on."""

    async def run() -> RecordingSink:
        stage = STAGES["tencent"]()
        assert isinstance(stage.server, TencentMetadataServer)
        with stage.server:
            goes.append(await stage.interrupt(120_000))
            async with watching(adapter_on(stage)) as sink:
                await sink.until(lambda: bool(sink.notices))
                return sink

    goes: list[int] = []
    deadline = asyncio.run(run()).notices[0].deadline_unix_ms
    assert deadline is not None
    assert abs(deadline - goes[0]) < 2_000


# --- how long UNKNOWN may last ------------------------------------------------------------------


def health_of(sink: RecordingSink) -> Health:
    return Health(source="aws/spot", limit_ms=1_000, sink=sink)


def test_unknown_is_reported_once_it_lasts_and_once_it_is_over() -> None:
    sink = RecordingSink()
    health = health_of(sink)
    for at_ms in (1_000, 1_500, 1_999):
        health.silent(detail="503", since_unix_ms=at_ms, now_unix_ms=at_ms)
    assert sink.silences == []
    for at_ms in (2_000, 2_500, 90_000):
        health.silent(detail="503", since_unix_ms=at_ms, now_unix_ms=at_ms)
    health.answered()
    health.answered()
    assert [(s.source, s.since_unix_ms, s.detail) for s in sink.silences] == [
        ("aws/spot", 1_000, "503"),
        ("aws/spot", None, ""),
    ]


def test_unknown_that_ends_in_time_is_not_reported() -> None:
    sink = RecordingSink()
    health = health_of(sink)
    for at_ms in range(1, 100_000, 900):
        health.silent(detail="", since_unix_ms=at_ms, now_unix_ms=at_ms + 800)
        health.answered()
    assert sink.silences == []


def test_a_single_try_that_takes_longer_than_the_limit_is_reported() -> None:
    sink = RecordingSink()
    health_of(sink).silent(detail="no answer", since_unix_ms=5_000, now_unix_ms=6_000)
    assert len(sink.silences) == 1


def test_a_fault_of_the_adapters_own_is_unknown_and_ends_nothing() -> None:
    async def read() -> Reading:
        raise KeyError("of ours")

    reading = asyncio.run(_read(replace(signal(), read=read)))
    assert (reading.complete, reading.detail) == (
        False,
        "fault in the adapter: KeyError('of ours')",
    )


# --- pace ---------------------------------------------------------------------------------------


def signal(*, held_s: float = 0.0) -> Signal:
    async def read() -> Reading:
        return NONE

    return Signal(name="s", read=read, poll_s=2.0, unknown_s=30.0, held_s=held_s)


def present() -> Reading:
    event = Observed(key="k", cause=Cause.UNKNOWN, notice_class=NoticeClass.HARD)
    return Reading(events=(event,))


def test_a_poll_keeps_its_pace_with_jitter_however_long_the_answer_takes() -> None:
    poll = signal()
    pauses = [_pause_s(poll, NONE, NONE, took_s=0.5) for _ in range(500)]
    assert 1.1 - 1e-9 <= min(pauses) < max(pauses) <= 1.5
    assert max(pauses) - min(pauses) > 0.2, "nodes that start together do not stay together"
    assert _pause_s(poll, NONE, NONE, took_s=9.0) < 0.1


def test_a_long_poll_goes_on_at_once_after_news_and_pauses_when_it_does_not_wait() -> None:
    poll = signal(held_s=10.0)
    assert _pause_s(poll, NONE, NONE, took_s=HELD_S) < 0.1
    assert _pause_s(poll, present(), NONE, took_s=0.0) < 0.1
    assert _pause_s(poll, NONE, NONE, took_s=0.0) > 1.5
    assert _pause_s(poll, Reading(complete=False), NONE, took_s=0.0) > 1.5
    rare = replace(poll, poll_s=3_600.0)
    assert _pause_s(rare, Reading(complete=False), NONE, took_s=0.0) <= UNKNOWN_POLL_S
    assert CONFIRM_S > 1.0, "within one second a deadline that slides may be stated twice"
