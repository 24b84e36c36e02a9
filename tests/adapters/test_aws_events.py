"""EventBridge's warnings, through a rule into an SQS queue (moto's server), to the agent."""

from __future__ import annotations

import asyncio
import importlib
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from drainfsm.adapter import NoticeClass
from drainfsm.errors import ConfigError
from drainfsm.testing import RecordingSink, check_adapter, context_for, watching
from drainfsm_adapters import aws_events
from drainfsm_kit.s3 import ENVIRONMENT, s3_server

boto3 = importlib.import_module("boto3")
BLOCK = "Capacity Block Expiration Warning"
RESERVATION = "cr-0"


class Account:
    """A rule that sends both warnings to a queue, and somebody who tells them."""

    def __init__(self, port: int) -> None:
        given = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
        sqs, self._events = boto3.client("sqs", **given), boto3.client("events", **given)
        self.queue_url = sqs.create_queue(QueueName=f"job-{secrets.token_hex(4)}")["QueueUrl"]
        attributes = sqs.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=["QueueArn"])
        pattern = json.dumps({"detail-type": [*aws_events.BLOCK, aws_events.INTERRUPTION]})
        arn = attributes["Attributes"]["QueueArn"]
        rule = arn.rpartition(":")[2]
        self._events.put_rule(Name=rule, EventPattern=pattern)
        self._events.put_targets(Rule=rule, Targets=[{"Id": rule, "Arn": arn}])
        self._sqs = sqs

    def warn(self, kind: str, **detail: str) -> None:
        named = {name.replace("_", "-"): value for name, value in detail.items()}
        entry = {"Source": "ec2", "DetailType": kind, "Detail": json.dumps(named)}
        answer = self._events.put_events(Entries=[entry])
        assert answer["FailedEntryCount"] == 0

    def put(self, body: str) -> None:
        self._sqs.send_message(QueueUrl=self.queue_url, MessageBody=body)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def account(port: int, monkeypatch: pytest.MonkeyPatch) -> Account:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return Account(port)


def later(seconds: int) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000)


Story = Callable[[RecordingSink], Awaitable[Any]]


def play(account: Account, story: Story, **options: str) -> RecordingSink:
    async def run() -> RecordingSink:
        given = {"queue_url": account.queue_url, "poll_s": "1", **options}
        async with watching(aws_events.adapter(context_for(given))) as sink:
            await story(sink)
            return sink

    return asyncio.run(run())


async def one_notice(sink: RecordingSink) -> None:
    await sink.until(lambda: bool(sink.notices))


def test_the_end_of_a_capacity_block_is_soft_and_half_an_hour_early(account: Account) -> None:
    end = later(2_400)
    account.warn(BLOCK, capacity_reservation_id=RESERVATION, end_date=end)
    notice = play(account, one_notice).notices[0]
    assert (notice.notice_class, notice.cause) == (NoticeClass.SOFT, "capacity_end")
    assert notice.deadline_unix_ms == unix_ms(end) - 1_800_000
    again = play(account, one_notice).notices[0]
    assert again.identity == notice.identity, "the next attempt hears it, too"


def test_a_block_that_is_extended_is_withdrawn_and_announced_anew(account: Account) -> None:
    ends = later(2_400), later(90_000)

    async def story(sink: RecordingSink) -> None:
        for count, end in enumerate(ends, start=1):
            account.warn(BLOCK, capacity_reservation_id=RESERVATION, end_date=end)
            await sink.until(lambda count=count: len(sink.notices) == count)  # type: ignore[misc]
        await asyncio.sleep(3)

    sink = play(account, story)
    assert sink.identities == [f"aws-events/{RESERVATION}/{end}" for end in ends]
    assert [w.native_id for w in sink.withdrawals] == [f"{RESERVATION}/{ends[0]}"]


def test_the_interruption_of_reserved_capacity_is_hard(account: Account) -> None:
    account.warn(aws_events.INTERRUPTION, instance_id="i-1", capacity_reservation_id=RESERVATION)
    notice = play(account, one_notice).notices[0]
    assert notice.notice_class is NoticeClass.HARD
    assert notice.deadline_unix_ms is not None
    left_ms = notice.deadline_unix_ms - notice.received_unix_ms
    assert 60_000 < left_ms <= 121_000
    assert "i-1" in notice.detail


def test_what_is_none_of_the_jobs_or_over_is_passed_over(account: Account) -> None:
    account.put("no JSON")
    account.put('{"detail-type": "EC2 Instance State-change Notification", "detail": {}}')
    account.warn(BLOCK, capacity_reservation_id="cr-other", end_date=later(2_400))
    account.warn(BLOCK, capacity_reservation_id=RESERVATION, end_date=later(-60))
    account.warn(BLOCK, capacity_reservation_id=RESERVATION, end_date="soon")
    end = later(2_400)
    account.warn(BLOCK, capacity_reservation_id=RESERVATION, end_date=end)

    async def story(sink: RecordingSink) -> None:
        await one_notice(sink)
        await asyncio.sleep(3)

    sink = play(account, story, capacity_reservation=RESERVATION)
    assert sink.identities == [f"aws-events/{RESERVATION}/{end}"]
    assert sink.silences == []


def test_a_queue_that_is_away_is_unknown_and_comes_back(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(sink: RecordingSink) -> None:
        await sink.until(lambda: bool(sink.unknown_now))

    sink = play(account, story, queue_url=f"{account.queue_url}-gone", unknown_s="0.1")
    assert sink.silences[0].source == "aws-events"
    assert "NonExistentQueue" in sink.silences[0].detail


def test_it_keeps_the_contract_and_asks_on_node_0_alone(account: Account) -> None:
    account.warn(BLOCK, capacity_reservation_id=RESERVATION, end_date=later(2_400))
    context = context_for({"queue_url": account.queue_url})
    asyncio.run(check_adapter(aws_events.adapter, context, notice_count=1))


@pytest.mark.parametrize("queue_url", ["", "job", "arn:aws:sqs:us-east-1:1:job"])
def test_a_queue_is_named_by_its_url(queue_url: str) -> None:
    with pytest.raises(ConfigError, match=r"\[adapters.aws-events\] queue_url"):
        aws_events.adapter(context_for({"queue_url": queue_url}))
