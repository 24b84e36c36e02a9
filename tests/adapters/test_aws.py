"""EC2's metadata service: tokens, every key, and who is who."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from socket import gethostname

import pytest

from drainfsm.core.notice import NoticeClass
from drainfsm.errors import ConfigError
from drainfsm.testing.adapter_contract import context_for
from drainfsm.testing.metadata import AwsMetadataServer, Fault
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_adapters import aws

EVENT = "instance-event-0aaaabbbbccccdddd"
HARD, SOFT = NoticeClass.HARD, NoticeClass.SOFT
Story = Callable[[AwsMetadataServer, RecordingSink], Awaitable[None]]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> AwsMetadataServer:
    """Not started yet."""
    made = AwsMetadataServer()
    with made:
        pass  # has a port now
    monkeypatch.setenv(made.variable, made.endpoint)
    monkeypatch.setattr(aws, "ADVISORY_POLL_S", 1.0)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    return made


def play(server: AwsMetadataServer, story: Story, **options: str) -> RecordingSink:
    async def run() -> RecordingSink:
        async with watching(aws.adapter(context_for({"poll_s": "1", **options}))) as sink:
            await story(server, sink)
            return sink

    with server:
        return asyncio.run(run())


async def one_notice(server: AwsMetadataServer, sink: RecordingSink) -> None:
    await sink.until(lambda: bool(sink.notices))


@pytest.mark.parametrize("action", ["terminate", "stop"])
def test_an_interruption_is_a_hard_notice_at_the_stated_instant(
    server: AwsMetadataServer, action: str
) -> None:
    goes = server.interrupt(in_ms=120_000, action=action)
    notice = play(server, one_notice).notices[0]
    assert (notice.notice_class, notice.cause) == (HARD, "spot_interruption")
    assert notice.detail.startswith(action)
    assert notice.deadline_unix_ms is not None
    assert abs(notice.deadline_unix_ms - goes) <= notice.clock_skew_ms <= 2_000
    assert notice.native_id.startswith("i-0123456789abcdef0/spot/")


def test_hibernation_begins_at_once(server: AwsMetadataServer) -> None:
    server.interrupt(in_ms=120_000, action="hibernate")
    notice = play(server, one_notice).notices[0]
    assert notice.deadline_unix_ms == notice.received_unix_ms


def test_the_older_key_alone_is_an_interruption_too(server: AwsMetadataServer) -> None:
    goes = server.interrupt(in_ms=120_000)
    server.put("spot/instance-action", None)
    notice = play(server, one_notice).notices[0]
    assert notice.deadline_unix_ms is not None
    assert abs(notice.deadline_unix_ms - goes) <= notice.clock_skew_ms


def test_two_keys_state_one_interruption(server: AwsMetadataServer) -> None:
    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        server.interrupt(in_ms=120_000)
        server.put("spot/instance-action", None)
        await sink.until(lambda: bool(sink.notices))
        server.interrupt(in_ms=120_000)
        await three_more_polls(server)

    assert len(play(server, story).notices) == 1


async def three_more_polls(server: AwsMetadataServer, *, key: str = "termination-time") -> None:
    seen = server.count(key)
    while server.count(key) < seen + 3:
        await asyncio.sleep(0.05)


def test_a_key_that_fails_does_not_hide_the_other(server: AwsMetadataServer) -> None:
    server.interrupt(in_ms=120_000)
    server.fail(Fault.UNAVAILABLE, part="instance-action")
    assert len(play(server, one_notice).identities) == 1


def test_a_rebalance_recommendation_is_recorded_and_may_be_left_for(
    server: AwsMetadataServer,
) -> None:
    """It is never cleared, and may never be followed by anything."""
    server.recommend_rebalance()
    notice = play(server, one_notice, rebalance_s="300").notices[0]
    assert (notice.notice_class, notice.cause) == (SOFT, "rebalance_recommendation")
    assert notice.advisory
    notice = play(server, one_notice, rebalance="leave", rebalance_s="300").notices[0]
    assert not notice.advisory
    assert notice.assumed
    assert notice.deadline_unix_ms is not None
    assert 290_000 < notice.deadline_unix_ms - notice.received_unix_ms <= 300_000


def test_a_scale_in_does_not_invent_less_than_what_an_interruption_states(
    server: AwsMetadataServer,
) -> None:
    goes = server.interrupt(in_ms=120_000)
    server.put("autoscaling/target-lifecycle-state", "Terminated")

    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        await sink.until(lambda: len(sink.identities) == 2)

    for notice in play(server, story).notices:
        assert notice.deadline_unix_ms is not None
        assert abs(notice.deadline_unix_ms - goes) <= notice.clock_skew_ms


@pytest.mark.parametrize("state", ["Warmed:Stopped", "Warmed:Hibernated"])
def test_a_scale_in_may_end_in_a_warm_pool(server: AwsMetadataServer, state: str) -> None:
    server.put("autoscaling/target-lifecycle-state", state)
    assert play(server, one_notice).notices[0].cause == "scale_in"


def test_what_is_there_at_the_first_read_is_said_to_stand(server: AwsMetadataServer) -> None:
    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        await sink.until(lambda: len(sink.notices) == 1)
        await three_more_polls(server)
        server.interrupt(in_ms=120_000)
        await sink.until(lambda: len(sink.notices) == 2)

    server.schedule(EVENT, in_ms=3_600_000)
    before, after = play(server, story).notices
    assert (bool(before.standing), bool(after.standing)) == (True, False)


def test_an_auto_scaling_termination_is_withdrawn_when_the_instance_is_back_in_service(
    server: AwsMetadataServer,
) -> None:
    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        server.put("autoscaling/target-lifecycle-state", "Terminated")
        await sink.until(lambda: bool(sink.notices))
        server.put("autoscaling/target-lifecycle-state", "InService")
        await sink.until(lambda: bool(sink.withdrawals))

    sink = play(server, story)
    notice = sink.notices[0]
    assert (notice.notice_class, notice.cause) == (SOFT, "scale_in")
    assert notice.deadline_unix_ms is None, "the hook's time-out is not on the instance"
    assert sink.standing == {}


def test_the_hook_time_out_from_the_configuration_is_the_deadline(
    server: AwsMetadataServer,
) -> None:
    server.put("autoscaling/target-lifecycle-state", "Terminated")
    notice = play(server, one_notice, autoscaling_s="600").notices[0]
    assert notice.deadline_unix_ms is not None
    assert 590_000 < notice.deadline_unix_ms - notice.received_unix_ms <= 600_000


def test_scheduled_events_are_told_apart_by_their_id(server: AwsMetadataServer) -> None:
    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        server.schedule("instance-event-1", in_ms=3_600_000)
        server.schedule("instance-event-2", in_ms=7_200_000, code="system-reboot")
        await sink.until(lambda: len(sink.notices) == 2)
        server.settle("instance-event-1", "completed")
        await sink.until(lambda: len(sink.withdrawals) == 1)
        server.forget("instance-event-2")
        await sink.until(lambda: len(sink.withdrawals) == 2)

    sink = play(server, story)
    assert [w.native_id.rpartition("/")[2] for w in sink.withdrawals] == [
        "instance-event-1",
        "instance-event-2",
    ]
    assert sink.withdrawals[0].reason == "instance-event-1 is completed"
    assert {n.cause for n in sink.notices} == {"host_maintenance"}


def test_a_bad_entry_hides_no_other_and_withdraws_none(server: AwsMetadataServer) -> None:
    def entry(event_id: str, not_before: str) -> str:
        return (
            f'{{"EventId":"{event_id}","State":"active","NotBefore":"{not_before}",'
            '"NotAfter":null,"Code":7,"Description":null}'
        )

    good = entry("good", "3 Dec 2036 06:00:00 GMT")

    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        server.put(
            "events/maintenance/scheduled",
            f"[{entry('bad', 'soon')},{entry('far', '9' * 5_000)},{good},7]",
        )
        await sink.until(lambda: bool(sink.notices) and bool(sink.silences))
        server.put("events/maintenance/scheduled", f"[{entry('bad', 'soon')}]")
        await three_more_polls(server, key="scheduled")

    sink = play(server, story, unknown_s="0.1")
    assert [n.native_id.rpartition("/")[2] for n in sink.notices] == ["good"]
    assert sink.withdrawals == []
    assert sink.silences[0].source == "aws/scheduled"
    assert "garbage" in sink.silences[0].detail


def test_null_is_nothing(server: AwsMetadataServer) -> None:
    for key in ("spot/instance-action", "spot/termination-time", "events/maintenance/scheduled"):
        server.put(key, "null")
    server.put("events/recommendations/rebalance", "null")
    server.put("autoscaling/target-lifecycle-state", "null")

    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        await three_more_polls(server, key="rebalance")

    sink = play(server, story, unknown_s="0.1")
    assert (sink.notices, sink.silences) == ([], [])


def test_a_termination_time_that_is_no_time_says_nothing(server: AwsMetadataServer) -> None:
    """EC2 leaves such a value where nothing is scheduled; a page in its place is another thing."""
    server.put("spot/termination-time", "not scheduled")

    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        await three_more_polls(server)
        assert sink.silences == []
        server.put("spot/termination-time", "<html>Please log in</html>")
        await sink.until(lambda: bool(sink.silences))

    assert play(server, story, unknown_s="0.1").notices == []


@pytest.mark.parametrize("time", ["null", '"soon"', '"99999999999-01-01T00:00:00Z"'])
def test_an_interruption_is_heard_whatever_its_time_is(
    server: AwsMetadataServer, time: str
) -> None:
    server.put("spot/instance-action", f'{{"action":"terminate","time":{time}}}')
    notice = play(server, one_notice).notices[0]
    assert (notice.notice_class, notice.deadline_unix_ms) == (HARD, None)


def test_of_two_times_the_earlier_counts(server: AwsMetadataServer) -> None:
    goes = server.interrupt(in_ms=60_000)
    later = AwsMetadataServer()
    later.interrupt(in_ms=120_000)
    server.put("spot/instance-action", later.value("spot/instance-action"))
    notice = play(server, one_notice).notices[0]
    assert notice.deadline_unix_ms is not None
    assert abs(notice.deadline_unix_ms - goes) <= notice.clock_skew_ms


def test_a_time_that_passed_long_ago_does_not_hide_a_new_one(server: AwsMetadataServer) -> None:
    goes = server.interrupt(in_ms=120_000)
    server.put("spot/termination-time", "2026-01-05T12:02:00Z")
    notice = play(server, one_notice).notices[0]
    assert notice.deadline_unix_ms is not None
    assert abs(notice.deadline_unix_ms - goes) <= notice.clock_skew_ms


def test_one_id_that_is_active_and_cancelled_in_one_list_is_one_notice(
    server: AwsMetadataServer,
) -> None:
    server.schedule(EVENT, in_ms=3_600_000)
    listed = server.value("events/maintenance/scheduled")
    cancelled = listed.replace("active", "canceled")
    server.put("events/maintenance/scheduled", f"[{listed[1:-1]},{cancelled[1:-1]}]")

    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        await three_more_polls(server, key="scheduled")

    sink = play(server, story)
    assert (len(sink.notices), sink.withdrawals) == (1, [])


@pytest.mark.parametrize("ttl", ["\u00b2", "9" * 5_000, "-1", ""])
def test_a_token_whose_life_time_is_none_is_used(server: AwsMetadataServer, ttl: str) -> None:
    server.stated_ttl = ttl
    server.interrupt(in_ms=120_000)
    assert len(play(server, one_notice).identities) == 1


def test_a_capacity_block_ends_as_configured(server: AwsMetadataServer) -> None:
    options = {"capacity_block_end": "2027-11-01T11:30:00Z", "signals": "spot"}
    notice = play(server, one_notice, **options).notices[0]
    assert (notice.notice_class, notice.cause) == (SOFT, "capacity_end")
    assert notice.deadline_unix_ms is not None
    half_hour_before = 1_825_066_800_000
    assert abs(notice.deadline_unix_ms - half_hour_before) <= notice.clock_skew_ms


# --- tokens -------------------------------------------------------------------------------------


def test_a_token_is_fetched_once_for_all_keys_and_polls(server: AwsMetadataServer) -> None:
    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        await three_more_polls(server)

    play(server, story)
    assert server.count("/latest/api/token") == 1


def test_a_token_is_renewed_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    server = AwsMetadataServer(token_ttl_s_max=2)

    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        while server.count("/latest/api/token") < 4:
            await asyncio.sleep(0.05)
        server.interrupt(in_ms=120_000)
        await sink.until(lambda: bool(sink.notices))

    with server:
        monkeypatch.setenv(server.variable, server.endpoint)
    assert play(server, story, unknown_s="0.1").silences == []
    assert server.refused_count == 0


def test_a_token_that_is_refused_is_replaced_within_the_same_read(
    server: AwsMetadataServer,
) -> None:
    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        await three_more_polls(server)
        server.revoke_tokens()
        server.interrupt(in_ms=120_000)
        await sink.until(lambda: bool(sink.notices))

    sink = play(server, story, unknown_s="0.1")
    assert sink.silences == []
    assert server.refused_count > 0
    assert server.count("/latest/api/token") == 2


def test_a_new_token_that_is_refused_too_is_unknown(server: AwsMetadataServer) -> None:
    server.fail(Fault.UNAUTHORIZED, part="meta-data")
    sink = play(server, one_silence, unknown_s="0.1", signals="spot")
    assert (sink.silences[0].source, sink.silences[0].detail) == (
        "aws/spot",
        "401, with a new token, too",
    )


async def one_silence(server: AwsMetadataServer, sink: RecordingSink) -> None:
    await sink.until(lambda: bool(sink.silences))


def test_the_hop_limit_is_diagnosed(server: AwsMetadataServer) -> None:
    server.limit_hops()
    sink = play(server, one_silence, unknown_s="0.1", timeout_s="0.5", signals="spot")
    assert "HttpPutResponseHopLimit" in sink.silences[0].detail
    assert "GET is answered 401" in sink.silences[0].detail


def test_readers_that_wait_for_one_token_request_share_its_failure(
    server: AwsMetadataServer,
) -> None:
    """One after the other they would hold each other up for a time-out each."""

    async def story(server: AwsMetadataServer, sink: RecordingSink) -> None:
        await sink.until(lambda: len(sink.unknown_now) == 4)
        assert server.count("/latest/api/token") == 1

    server.limit_hops()
    play(server, story, unknown_s="0.1", timeout_s="1")


def test_a_service_that_is_switched_off_is_told_from_the_hop_limit(
    server: AwsMetadataServer,
) -> None:
    server.fail(Fault.FORBIDDEN)
    sink = play(server, one_silence, unknown_s="0.1", signals="spot")
    assert "no token: answered 403 (HttpEndpoint disabled?)" in sink.silences[0].detail


def test_nothing_there_is_told_from_the_hop_limit(server: AwsMetadataServer) -> None:
    server.fail(Fault.HANG)
    sink = play(server, one_silence, unknown_s="0.1", timeout_s="0.3", signals="spot")
    assert "no metadata service is reachable from here" in sink.silences[0].detail


# --- identity and options -----------------------------------------------------------------------


def test_the_nodes_of_a_job_state_two_interruptions_of_one_second(
    server: AwsMetadataServer,
) -> None:
    server.interrupt(in_ms=120_000)
    first = play(server, one_notice).identities
    server.put("instance-id", "i-0fedcba9876543210")
    second = play(server, one_notice).identities
    assert set(first).isdisjoint(second)


def test_an_instance_whose_id_cannot_be_read_is_known_by_its_host_name(
    server: AwsMetadataServer,
) -> None:
    server.interrupt(in_ms=120_000)
    server.fail(Fault.UNAVAILABLE, part="instance-id")
    assert play(server, one_notice).notices[0].native_id.startswith(f"{gethostname()}-node0/")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"poll_s": "0.2"}, "poll_s = 0.2: take 1 to 5 seconds"),
        ({"poll_s": "10"}, "poll_s = 10: take 1 to 5 seconds"),
        ({"poll_s": "soon"}, "poll_s"),
        ({"timeout_s": "0"}, "timeout_s: must be above 0"),
        ({"pol_s": "2"}, "known keys: autoscaling_s"),
        ({"signals": "spot,rebalence"}, "'rebalence' is not one of spot"),
        ({"rebalance": "ignore"}, "rebalance = 'ignore': take record or leave"),
        ({"capacity_block_end": "soon"}, "capacity_block_end = 'soon'"),
        ({"capacity_block_end": "2020-01-01T00:00:00Z"}, "it has passed"),
    ],
)
def test_an_option_that_is_wrong_is_refused_by_name(
    server: AwsMetadataServer, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        aws.adapter(context_for(options))
    assert message in str(caught.value)
    assert "[adapters.aws]" in str(caught.value)


def test_a_service_that_the_environment_forbids_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigError, match="AWS_EC2_METADATA_DISABLED"):
        aws.adapter(context_for())


def test_ipv6_is_chosen_as_the_sdks_choose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(aws.ENDPOINT_VARIABLE, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv6")
    assert aws.endpoint_text() == "http://[fd00:ec2::254]"
