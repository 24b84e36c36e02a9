"""Compute Engine's metadata server: long polls, edges without an instant, windows that move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sized
from functools import partial

import pytest

from drainfsm.core.notice import NoticeClass
from drainfsm.errors import ConfigError
from drainfsm.testing.adapter_contract import context_for
from drainfsm.testing.metadata import Fault, GcpMetadataServer
from drainfsm.testing.metadata.gcp import NO_NOTICE_YET
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_adapters import gcp

HARD, SOFT = NoticeClass.HARD, NoticeClass.SOFT
Story = Callable[[GcpMetadataServer, RecordingSink], Awaitable[None]]
BUSY_MS = 25_000
"""What may pass on a busy machine between two lines of a test."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> GcpMetadataServer:
    """Not started yet."""
    made = GcpMetadataServer()
    with made:
        pass  # has a port now
    monkeypatch.setenv(made.variable, made.endpoint)
    monkeypatch.setattr(gcp, "ADVISORY_POLL_S", 1.0)
    return made


def play(server: GcpMetadataServer, story: Story, **options: str) -> RecordingSink:
    async def run() -> RecordingSink:
        async with watching(gcp.adapter(context_for({"poll_s": "1", **options}))) as sink:
            await story(server, sink)
            return sink

    with server:
        return asyncio.run(run())


async def requested(server: GcpMetadataServer, part: str, *, count: int) -> None:
    while server.count(part) < count:
        await asyncio.sleep(0.02)


async def one_notice(server: GcpMetadataServer, sink: RecordingSink) -> None:
    await sink.until(lambda: bool(sink.notices))


def heard(what: Sized, count: int) -> bool:
    return len(what) == count


def test_a_preemption_wakes_the_long_poll_and_is_hard(server: GcpMetadataServer) -> None:
    goes = []

    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await requested(server, "preempted", count=2)
        await asyncio.sleep(0.5)
        goes.append(server.preempt() + 30_000)
        await sink.until(lambda: bool(sink.notices))

    sink = play(server, story, long_poll_s="300")
    notice = sink.notices[0]
    assert (notice.notice_class, notice.cause) == (HARD, "spot_interruption")
    assert notice.native_id == "4520031799277581759/preempted"
    assert notice.deadline_unix_ms is not None
    assert goes[0] - BUSY_MS < notice.deadline_unix_ms <= goes[0], "never later than the true one"
    assert server.count("preempted") in (2, 3), "read once, then waited for"


@pytest.mark.parametrize(("notice_s", "lead_ms"), [("0", 30_000), ("120", 150_000)])
def test_the_lead_times_come_from_the_configuration(
    server: GcpMetadataServer, notice_s: str, lead_ms: int
) -> None:

    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await requested(server, "preempted", count=2)
        server.preempt()
        await sink.until(lambda: bool(sink.notices))

    notice = play(server, story, preemption_notice_s=notice_s).notices[0]
    assert notice.deadline_unix_ms is not None
    left_ms = notice.deadline_unix_ms - notice.received_unix_ms
    assert lead_ms - BUSY_MS < left_ms <= lead_ms
    assert not notice.assumed


@pytest.mark.parametrize("stop_s", ["0", "600"])
def test_a_graceful_shutdown_is_hard_and_takes_as_long_as_is_configured(
    server: GcpMetadataServer, stop_s: str
) -> None:
    """A stop or delete by a user or an instance group, which sets nothing else."""

    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await requested(server, "stop-state", count=2)
        assert sink.silences == [], "a machine that is not being stopped answers 404"
        server.stop_gracefully()
        await sink.until(lambda: bool(sink.notices))

    notice = play(server, story, stop_s=stop_s, unknown_s="0.1").notices[0]
    assert (notice.notice_class, notice.cause) == (HARD, "scale_in")
    deadline = notice.deadline_unix_ms
    if stop_s == "0":
        assert deadline is None
    else:
        assert deadline is not None
        assert 590_000 < deadline - notice.received_unix_ms <= 600_000


def test_an_edge_that_nobody_saw_may_be_as_old_as_its_lead(server: GcpMetadataServer) -> None:
    """TRUE at the first read: the end may come at any moment, and the deadline says so."""
    server.preempt()
    notice = play(server, one_notice).notices[0]
    assert notice.deadline_unix_ms is not None
    earliest = notice.deadline_unix_ms - notice.clock_skew_ms
    assert earliest <= notice.received_unix_ms
    assert (bool(notice.standing), bool(notice.assumed)) == (True, True)
    assert "came at an unknown time" in notice.detail


def test_maintenance_that_stands_already_leaves_the_grace_of_the_job(
    server: GcpMetadataServer,
) -> None:
    server.put("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    notice = play(server, one_notice).notices[0]
    assert (notice.notice_class, notice.deadline_unix_ms) == (SOFT, None)
    assert "for an unknown time" in notice.detail


@pytest.mark.parametrize(
    ("machine_type", "lead_ms"),
    [
        ("projects/123/machineTypes/a3-highgpu-8g", 3_600_000),
        ("projects/123/machineTypes/g2-standard-4", 3_600_000),
        ("projects/123/machineTypes/n2-standard-8", 60_000),
        (None, 60_000),
    ],
)
def test_the_lead_of_maintenance_follows_from_the_machine_type(
    server: GcpMetadataServer, machine_type: str | None, lead_ms: int
) -> None:
    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await requested(server, "maintenance-event", count=2)
        server.put("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        await sink.until(lambda: bool(sink.notices))

    server.put("machine-type", machine_type)
    notice = play(server, story).notices[0]
    assert notice.deadline_unix_ms is not None
    left_ms = notice.deadline_unix_ms - notice.received_unix_ms
    assert lead_ms - BUSY_MS < left_ms <= lead_ms


def test_a_change_that_was_missed_counts_from_the_last_answer_before_it(
    server: GcpMetadataServer,
) -> None:
    """The edge has no instant: it may have come right after the last FALSE."""
    goes = []

    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await requested(server, "preempted", count=2)
        server.fail(Fault.UNAVAILABLE)
        goes.append(server.preempt() + 30_000)
        await asyncio.sleep(3)
        server.heal()
        await sink.until(lambda: bool(sink.notices))

    notice = play(server, story, long_poll_s="60").notices[0]
    assert notice.deadline_unix_ms is not None
    assert notice.deadline_unix_ms <= goes[0]


def test_false_and_true_again_is_one_notice(server: GcpMetadataServer) -> None:
    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        server.preempt()
        await sink.until(lambda: bool(sink.notices))
        for value in ("FALSE", "TRUE"):
            seen = server.count("preempted")
            server.put("preempted", value)
            await requested(server, "preempted", count=seen + 1)

    sink = play(server, story)
    assert (len(sink.notices), sink.withdrawals) == (1, [])


def test_long_polls_that_return_for_nothing_do_not_spin(server: GcpMetadataServer) -> None:
    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await requested(server, "preempted", count=2)
        server.wake_for_nothing(count=1_000_000)
        await asyncio.sleep(3)

    sink = play(server, story)
    assert sink.notices == []
    assert server.count("preempted") <= 8, "a server that does not wait is polled"


def test_maintenance_is_asked_for_from_the_start(server: GcpMetadataServer) -> None:
    """Google sends no warning to a machine that has never asked."""

    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await requested(server, "maintenance-event", count=2)

    play(server, story)
    waits = [r for r in server.requests if r.path.endswith("maintenance-event") and r.query]
    assert waits[0].query["wait_for_change"] == "true"
    assert waits[0].query["last_etag"]


def test_host_maintenance_is_soft_and_withdrawn_with_none(server: GcpMetadataServer) -> None:
    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        for count in (1, 2):
            server.put("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
            await sink.until(partial(heard, sink.notices, count))
            server.put("maintenance-event", "NONE")
            await sink.until(partial(heard, sink.withdrawals, count))

    sink = play(server, story, maintenance_s="3600")
    assert [n.notice_class for n in sink.notices] == [SOFT, SOFT]
    assert len(set(sink.identities)) == 2, "each edge is an event of its own"
    assert sink.standing == {}


def test_a_live_migration_is_ridden_out_unless_configured(server: GcpMetadataServer) -> None:
    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await requested(server, "maintenance-event", count=2)

    server.put("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
    assert play(server, story).notices == []
    assert len(play(server, one_notice, migrate="true").notices) == 1


@pytest.mark.parametrize("spelling", ["snake", "camel"])
def test_a_maintenance_window_is_read_in_both_spellings(
    server: GcpMetadataServer, spelling: str
) -> None:
    at = server.plan_maintenance(in_ms=86_400_000, spelling=spelling)
    notice = play(server, one_notice).notices[0]
    assert notice.notice_class is SOFT
    assert notice.deadline_unix_ms is not None
    assert abs(notice.deadline_unix_ms - at) <= notice.clock_skew_ms


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ('{"error":"quota exceeded"}', "quota exceeded"),
        (None, "answered 404: this machine type may have none"),
        ("<html>", "garbage"),
        ('{"windowStartTime":"soon"}', "garbage"),
        ("{}", "garbage"),
    ],
)
def test_maintenance_that_cannot_be_told_is_unknown_and_blinds_nothing_else(
    server: GcpMetadataServer, monkeypatch: pytest.MonkeyPatch, value: str | None, detail: str
) -> None:
    monkeypatch.setattr(gcp, "ADVISORY_UNKNOWN_S", 0.1)

    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await sink.until(lambda: bool(sink.silences))
        server.preempt()
        await sink.until(lambda: bool(sink.notices))

    server.put("upcoming-maintenance", value)
    silence = play(server, story, unknown_s="0.1").silences[0]
    assert silence.source == "gcp/upcoming-maintenance"
    assert detail in silence.detail


@pytest.mark.parametrize("value", [NO_NOTICE_YET, "NONE", "null"])
def test_where_no_maintenance_is_planned_nothing_is_reported(
    server: GcpMetadataServer, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """TPU VMs say so by an error."""
    monkeypatch.setattr(gcp, "ADVISORY_UNKNOWN_S", 0.1)

    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await requested(server, "upcoming-maintenance", count=3)

    server.put("upcoming-maintenance", value)
    sink = play(server, story, unknown_s="0.1")
    assert (sink.silences, sink.notices) == ([], [])


@pytest.mark.parametrize("fault", [Fault.PORTAL, Fault.REDIRECT, Fault.FORBIDDEN])
def test_what_is_no_metadata_server_is_unknown(server: GcpMetadataServer, fault: Fault) -> None:
    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await sink.until(lambda: bool(sink.silences))

    server.fail(fault)
    silence = play(server, story, unknown_s="0.1", signals="preempted").silences[0]
    assert "without Metadata-Flavor: not a metadata server" in silence.detail


def test_a_value_that_is_none_of_the_known_ones_is_unknown(server: GcpMetadataServer) -> None:
    async def story(server: GcpMetadataServer, sink: RecordingSink) -> None:
        await sink.until(lambda: bool(sink.silences))

    server.put("preempted", "MAYBE")
    sink = play(server, story, unknown_s="0.1", signals="preempted")
    assert (sink.notices, "MAYBE" in sink.silences[0].detail) == ([], True)


def test_a_long_poll_longer_than_five_minutes_is_refused() -> None:
    with pytest.raises(ConfigError, match="long_poll_s"):
        gcp.adapter(context_for({"long_poll_s": "3600"}))
