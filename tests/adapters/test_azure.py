"""Scheduled Events: whose they are, when they begin, and who says that they may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from drainfsm.adapter import Departure
from drainfsm.core.notice import NoticeClass
from drainfsm.testing.adapter_contract import context_for
from drainfsm.testing.metadata import AzureMetadataServer, Fault
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_adapters import azure

HARD, SOFT = NoticeClass.HARD, NoticeClass.SOFT
Story = Callable[[AzureMetadataServer, RecordingSink], Awaitable[None]]
EVENTS = "scheduledevents"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> AzureMetadataServer:
    """Not started yet; its VM is ``gpu-0``."""
    made = AzureMetadataServer()
    with made:
        pass  # has a port now
    monkeypatch.setenv(made.variable, made.endpoint)
    return made


def play(server: AzureMetadataServer, story: Story, **options: str) -> RecordingSink:
    async def run() -> RecordingSink:
        async with watching(azure.adapter(context_for(options))) as sink:
            await story(server, sink)
            return sink

    with server:
        return asyncio.run(run())


def left(
    server: AzureMetadataServer,
    story: Story,
    left_for: tuple[str, ...] | None = None,
    timeout_ms: int = 20_000,
    **options: str,
) -> str:
    """What the last act says after the story, on the agent of this VM. ``left_for``: the notices
    that the job has left for; None: all that stand."""

    async def run() -> str:
        adapter = azure.adapter(context_for(options))
        async with watching(adapter) as sink:
            await story(server, sink)
            assert server.approved == [], "never before the whole job has left"
            notices = tuple(sink.standing) if left_for is None else left_for
            return await adapter.left(
                Departure(requeue=True, timeout_ms=timeout_ms, left_for=frozenset(notices))
            )

    with server:
        return asyncio.run(run())


async def polls(server: AzureMetadataServer, *, count: int = 2) -> None:
    seen = server.count(EVENTS)
    while server.count(EVENTS) < seen + count:
        await asyncio.sleep(0.02)


async def one_notice(server: AzureMetadataServer, sink: RecordingSink) -> None:
    await sink.until(lambda: bool(sink.notices))


async def two_polls(server: AzureMetadataServer, sink: RecordingSink) -> None:
    await polls(server, count=3)


@pytest.mark.parametrize(
    ("event_type", "notice_class", "cause"),
    [
        ("Preempt", HARD, "spot_interruption"),
        ("Terminate", SOFT, "scale_in"),
        ("Reboot", SOFT, "host_maintenance"),
        ("Redeploy", SOFT, "host_maintenance"),
        ("Freeze", SOFT, "host_maintenance"),
    ],
)
def test_a_scheduled_event_is_a_notice_at_its_not_before(
    server: AzureMetadataServer, event_type: str, notice_class: NoticeClass, cause: str
) -> None:
    event_id, at = server.schedule(event_type, in_ms=600_000)
    notice = play(server, one_notice).notices[0]
    assert (notice.notice_class, notice.cause) == (notice_class, cause)
    assert notice.native_id == f"gpu-0/{event_id}"
    assert notice.deadline_unix_ms is not None
    assert abs(notice.deadline_unix_ms - at) <= notice.clock_skew_ms


@pytest.mark.parametrize(("duration_s", "count"), [(0, 0), (5, 0), (9, 1), (30, 1), (-1, 1)])
def test_a_freeze_known_to_be_short_is_ridden_out(
    server: AzureMetadataServer, duration_s: int, count: int
) -> None:
    server.schedule("Freeze", in_ms=900_000, duration_s=duration_s)
    assert len(play(server, two_polls).identities) == count


def test_an_event_of_other_vms_is_none_of_ours(server: AzureMetadataServer) -> None:
    server.schedule("Reboot", in_ms=900_000, resources=("gpu-7", "gpu-00"))
    assert play(server, two_polls).notices == []


def test_an_event_that_has_begun_is_hard_and_due_now(server: AzureMetadataServer) -> None:
    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        event_id, _ = server.schedule("Reboot", in_ms=900_000)
        await sink.until(lambda: bool(sink.notices))
        server.start_event(event_id)
        await sink.until(lambda: len(sink.notices) == 2)
        server.remove(event_id)
        await polls(server)

    sink = play(server, story)
    before, begun = sink.notices
    assert before.identity == begun.identity
    assert (before.notice_class, begun.notice_class) == (SOFT, HARD)
    assert begun.deadline_unix_ms == begun.received_unix_ms
    assert sink.withdrawals == [], "it is over, it was not cancelled"


def test_a_hardware_failure_is_due_now(server: AzureMetadataServer) -> None:
    server.fail_hardware()
    notice = play(server, one_notice).notices[0]
    assert notice.notice_class is HARD
    assert notice.deadline_unix_ms == notice.received_unix_ms


def test_an_event_that_disappears_before_it_begins_is_withdrawn(
    server: AzureMetadataServer,
) -> None:
    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        event_id, _ = server.schedule("Redeploy", in_ms=600_000)
        await sink.until(lambda: bool(sink.notices))
        server.remove(event_id)
        await sink.until(lambda: bool(sink.withdrawals))

    assert play(server, story).standing == {}


def test_a_preemption_that_disappears_stands(server: AzureMetadataServer) -> None:
    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        event_id, _ = server.schedule("Preempt", in_ms=30_000)
        await sink.until(lambda: bool(sink.notices))
        server.remove(event_id)
        await polls(server)

    assert play(server, story).withdrawals == []


def test_events_missing_from_an_unchanged_incarnation_are_unknown_not_gone(
    server: AzureMetadataServer,
) -> None:
    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        server.schedule("Redeploy", in_ms=600_000)
        await sink.until(lambda: bool(sink.notices))
        server.lose_events()
        await sink.until(lambda: bool(sink.silences))

    sink = play(server, story, unknown_s="0.1")
    assert sink.withdrawals == []
    assert "unchanged incarnation" in sink.silences[0].detail


def slow_at_first(monkeypatch: pytest.MonkeyPatch, *, first_call_s: float) -> AzureMetadataServer:
    server = AzureMetadataServer(first_call_s=first_call_s)
    server.schedule("Preempt", in_ms=60_000)
    with server:
        monkeypatch.setenv(server.variable, server.endpoint)
    return server


def test_a_first_call_that_is_lost_makes_nobody_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    server = slow_at_first(monkeypatch, first_call_s=600.0)
    sink = play(server, one_notice, timeout_s="1")
    assert (len(sink.identities), server.count(EVENTS)) == (1, 2)


def test_a_first_call_without_an_answer_is_reported_by_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        await sink.until(lambda: "azure/scheduledevents" in sink.unknown_now)

    server = slow_at_first(monkeypatch, first_call_s=0.0)
    server.fail(Fault.HANG, part="scheduledevents")
    play(server, story, timeout_s="0.5", unknown_s="1")


def test_a_service_that_is_always_slower_than_the_time_limit_is_heard(
    server: AzureMetadataServer,
) -> None:
    server.delay_s = 2.0
    server.schedule("Preempt", in_ms=60_000)
    assert len(play(server, one_notice, timeout_s="0.7").identities) == 1


@pytest.mark.parametrize("stated", ["GPU-0", '"gpu-0"', " gpu-0\n"])
def test_the_own_name_is_compared_as_azure_compares_it(
    server: AzureMetadataServer, stated: str
) -> None:
    server.schedule("Preempt", in_ms=30_000, resources=("Gpu-0",))
    server.vm_name = stated
    assert len(play(server, one_notice).identities) == 1


@pytest.mark.parametrize("stated", ["<html>Please log in</html>", "db-7"])
def test_a_name_that_was_wrong_at_first_is_asked_for_again(
    server: AzureMetadataServer, monkeypatch: pytest.MonkeyPatch, stated: str
) -> None:
    monkeypatch.setattr(azure, "NAME_S", 1.0)

    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        await polls(server, count=2)
        server.vm_name = "gpu-0"
        server.schedule("Preempt", in_ms=30_000)
        await sink.until(lambda: bool(sink.notices))

    server.vm_name = stated
    play(server, story)


def test_a_mistyped_vm_name_is_told_and_costs_no_notice(server: AzureMetadataServer) -> None:
    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        await sink.until(lambda: bool(sink.notices) and "azure/vm-name" in sink.unknown_now)

    server.schedule("Preempt", in_ms=30_000)
    sink = play(server, story, vm_name="gpu-O", unknown_s="0.1")
    told = next(silence for silence in sink.silences if silence.source == "azure/vm-name")
    assert "vm_name = 'gpu-O', but the instance metadata says 'gpu-0'" in told.detail


@pytest.mark.parametrize(
    "changed",
    [
        {"Description": None},
        {"DurationInSeconds": "9"},
        {"DurationInSeconds": None, "EventSource": None, "ResourceType": 7},
        {"NotBefore": None},
        {"NotBefore": "Mon, 19 Sep 99999999999 18:29:47 GMT"},
    ],
)
def test_a_field_that_nobody_needs_silences_no_preemption(
    server: AzureMetadataServer, changed: dict[str, object]
) -> None:
    event_id, _ = server.schedule("Preempt", in_ms=30_000)
    server.change(event_id, **changed)
    notice = play(server, one_notice).notices[0]
    assert notice.notice_class is HARD
    assert (notice.deadline_unix_ms is None) == ("NotBefore" in changed)


def test_one_bad_event_hides_no_other(server: AzureMetadataServer) -> None:
    for bad in ({"Resources": None}, {"EventId": 7}, {"NotBefore": "9" * 5_000}):
        event_id, _ = server.schedule("Reboot", in_ms=30_000)
        server.change(event_id, **bad)
    good, _ = server.schedule("Reboot", in_ms=600_000)
    sink = play(server, one_notice)
    assert sink.identities == [f"azure/gpu-0/{good}"]


def test_events_are_not_ours_before_the_own_name_is_known(server: AzureMetadataServer) -> None:
    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        await sink.until(lambda: bool(sink.silences))
        assert sink.notices == []
        server.heal()
        await sink.until(lambda: bool(sink.notices))

    server.schedule("Preempt", in_ms=30_000)
    server.fail(Fault.UNAVAILABLE, part="compute/name")
    sink = play(server, story, unknown_s="0.1")
    assert "or set vm_name" in sink.silences[0].detail


def test_the_own_name_may_be_configured(server: AzureMetadataServer) -> None:
    server.schedule("Preempt", in_ms=30_000, resources=("gpu-3",))
    assert play(server, one_notice, vm_name="gpu-3").identities[0].startswith("azure/gpu-3/")


# --- acknowledgement ----------------------------------------------------------------------------


def test_the_own_event_may_begin_once_the_job_has_left(server: AzureMetadataServer) -> None:
    event_id, _ = server.schedule("Redeploy", in_ms=600_000)
    assert left(server, one_notice) == f"acknowledged {event_id}"
    assert server.approved == [event_id]


def test_an_event_for_strangers_is_not_acknowledged(server: AzureMetadataServer) -> None:
    event_id, _ = server.schedule("Reboot", in_ms=600_000, resources=("gpu-0", "db-1"))
    assert f"{event_id} also hits db-1" in left(server, one_notice)
    assert server.approved == []


def test_one_vm_of_the_job_acknowledges_for_all(server: AzureMetadataServer) -> None:
    event_id, _ = server.schedule("Reboot", in_ms=600_000, resources=("gpu-1", "gpu-0"))
    job_vms = "gpu-0, gpu-1, gpu-2"
    second = left(server, one_notice, vm_name="gpu-1", job_vms=job_vms)
    assert (second, server.approved) == ("", [])
    assert left(server, one_notice, vm_name="gpu-0", job_vms=job_vms).startswith("acknowledged")
    assert server.approved == [event_id]


def test_what_has_begun_or_was_cancelled_is_not_acknowledged(server: AzureMetadataServer) -> None:
    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        begun, _ = server.schedule("Reboot", in_ms=600_000)
        cancelled, _ = server.schedule("Redeploy", in_ms=600_000)
        await sink.until(lambda: len(sink.notices) == 2)
        server.start_event(begun)
        server.remove(cancelled)
        await sink.until(lambda: bool(sink.withdrawals))

    assert left(server, story) == ""
    assert server.approved == []


def test_acknowledgement_may_be_switched_off(server: AzureMetadataServer) -> None:
    server.schedule("Redeploy", in_ms=600_000)
    assert left(server, one_notice, acknowledge="false") == ""
    assert server.approved == []


def test_an_endpoint_that_is_gone_by_then_is_told_not_raised(server: AzureMetadataServer) -> None:
    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        server.schedule("Redeploy", in_ms=600_000)
        await sink.until(lambda: bool(sink.notices))
        server.stop()

    assert left(server, story, timeout_ms=2_000).startswith("not acknowledged: ")


def test_what_the_job_has_not_left_for_is_not_acknowledged(server: AzureMetadataServer) -> None:
    """It finished, or left for something else: what else runs on this VM may need the time."""
    server.schedule("Redeploy", in_ms=600_000)
    assert left(server, one_notice, left_for=()) == ""
    assert left(server, one_notice, left_for=("signal/SIGTERM", "azure/gpu-0/other")) == ""
    assert server.approved == []


def test_an_acknowledgement_is_tried_until_azure_answers(server: AzureMetadataServer) -> None:
    event_id, _ = server.schedule("Redeploy", in_ms=600_000)

    async def story(server: AzureMetadataServer, sink: RecordingSink) -> None:
        await sink.until(lambda: bool(sink.notices))
        server.fail(Fault.UNAVAILABLE)
        asyncio.get_running_loop().call_later(3, server.heal)

    assert left(server, story) == f"acknowledged {event_id}"
