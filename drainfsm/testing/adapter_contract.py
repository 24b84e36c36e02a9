"""The contract that every adapter must keep: call it from a test of yours."""

from __future__ import annotations

import asyncio

from drainfsm.adapter import (
    AdapterContext,
    AdapterFactory,
    Cordon,
    Departure,
    NoticeSource,
    Requeuer,
)
from drainfsm.testing.notice_sink import RecordingSink

SETTLE_S = 0.2
"""A watch that fails, or ends, usually does so at once."""

PROMPT_S = 10.0
"""An agent that leaves waits no longer for a source to end."""


def context_for(options: dict[str, str] | None = None) -> AdapterContext:
    """The context that an agent of a job with one node would pass."""
    return AdapterContext(
        job_id="job",
        node_rank=0,
        node_count=1,
        grace_ms=30_000,
        options=options or {},
    )


async def check_adapter(
    factory: AdapterFactory, context: AdapterContext, *, notice_count: int = 0
) -> RecordingSink:
    """What the adapter said, once it has given this many notices and was cancelled.

    Raises:
        AssertionError: the adapter breaks the contract; the message says where.
        TimeoutError: it gave fewer notices.
    """
    adapter = factory(context)
    roles = (NoticeSource, Cordon, Requeuer)
    assert isinstance(adapter, roles), "it has none of watch, cordon and left: what is it for?"
    sink = RecordingSink()
    if isinstance(adapter, NoticeSource):
        await _check_watch(adapter, sink, notice_count=notice_count)
    _check_notices(sink, context)
    if isinstance(adapter, Cordon):
        await _check_cordon(adapter)
    if isinstance(adapter, Requeuer):
        identities = frozenset(sink.identities)
        for departure in (
            Departure(requeue=False, timeout_ms=1_000),
            Departure(requeue=True, timeout_ms=1_000, left_for=identities),
        ):
            await _check_left(adapter, departure)
    return sink


async def _check_watch(source: NoticeSource, sink: RecordingSink, *, notice_count: int) -> None:
    watch = asyncio.create_task(source.watch(sink))
    await asyncio.sleep(SETTLE_S)
    await sink.until(lambda: len(sink.notices) >= notice_count, timeout_s=PROMPT_S)
    if watch.done():  # a platform that says nothing
        watch.result()
    watch.cancel()
    done, _ = await asyncio.wait([watch], timeout=PROMPT_S)
    assert done, f"watch goes on {PROMPT_S:g} s after it was cancelled"
    if not watch.cancelled():
        watch.result()


async def _check_cordon(cordon: Cordon) -> None:
    asked = asyncio.create_task(cordon.cordon((), timeout_ms=1_000))
    ended, _ = await asyncio.wait([asked], timeout=PROMPT_S)
    assert ended, f"cordon takes more than {PROMPT_S:g} s, given one second"
    detail = str(asked.exception()) if asked.exception() else asked.result()
    assert isinstance(detail, str), f"cordon returned {detail!r}, not a detail"
    assert detail or not asked.exception(), "cordon failed without a text for the log"


async def _check_left(requeuer: Requeuer, departure: Departure) -> None:
    asked = asyncio.create_task(requeuer.left(departure))
    ended, _ = await asyncio.wait([asked], timeout=PROMPT_S)
    assert ended, f"left takes more than {PROMPT_S:g} s, given one second"
    error = asked.exception()
    said = str(error) if error else asked.result()
    assert isinstance(said, str), f"left returned {said!r}, not what was done"
    assert said or not error, "left failed without a text for the operator"


def _check_notices(sink: RecordingSink, context: AdapterContext) -> None:
    now = context.now_unix_ms()
    for notice in sink.notices:
        assert notice.source, f"{notice}: a notice names its source"
        assert notice.native_id, f"{notice}: a notice has an identity"
        assert notice.received_unix_ms <= now, f"{notice}: received in the future; whose clock?"
        assert notice.clock_skew_ms >= 0, f"{notice}: a skew must not be negative"
