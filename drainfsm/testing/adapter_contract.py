"""What every adapter must keep to, ours or a third party's: call it from a test of yours."""

from __future__ import annotations

import asyncio

from drainfsm.adapter import AdapterContext, AdapterFactory, Departure
from drainfsm.testing.notice_sink import RecordingSink

SETTLE_S = 0.2
"""A watch that fails, or ends, mostly does so at once."""

PROMPT_S = 10.0
"""An agent that leaves waits no longer for a source to end."""


def context_for(options: dict[str, str] | None = None) -> AdapterContext:
    """What an agent of a job with one node would hand over."""
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
    """What the adapter said, once it has given so many notices and was cancelled.

    Raises:
        AssertionError: the adapter breaks the contract; the message says where.
        TimeoutError: it gave fewer notices.
    """
    adapter = factory(context)
    sink = RecordingSink()
    watch = asyncio.create_task(adapter.watch(sink))
    await asyncio.sleep(SETTLE_S)
    await sink.until(lambda: len(sink.notices) >= notice_count, timeout_s=PROMPT_S)
    if watch.done():  # a platform that tells nothing
        watch.result()
    watch.cancel()
    done, _ = await asyncio.wait([watch], timeout=PROMPT_S)
    assert done, f"watch goes on {PROMPT_S:g} s after it was cancelled"
    if not watch.cancelled():
        watch.result()
    _check_notices(sink, context)
    cordon = asyncio.create_task(adapter.cordon((), timeout_ms=1_000))
    ended, _ = await asyncio.wait([cordon], timeout=PROMPT_S)
    assert ended, f"cordon takes more than {PROMPT_S:g} s, given one second"
    detail = str(cordon.exception()) if cordon.exception() else cordon.result()
    assert isinstance(detail, str), f"cordon returned {detail!r}, not a detail"
    assert detail or not cordon.exception(), "cordon failed without a word for the log"
    async with asyncio.timeout(PROMPT_S):
        told = await adapter.left(Departure(requeue=True, timeout_ms=1_000))
    assert isinstance(told, str), f"left returned {told!r}, not a detail"
    return sink


def _check_notices(sink: RecordingSink, context: AdapterContext) -> None:
    now = context.now_unix_ms()
    for notice in sink.notices:
        assert notice.source, f"{notice}: a notice names its source"
        assert notice.native_id, f"{notice}: a notice has an identity"
        assert notice.received_unix_ms <= now, f"{notice}: received in the future; whose clock?"
        assert notice.clock_skew_ms >= 0, f"{notice}: a skew is a distance"
