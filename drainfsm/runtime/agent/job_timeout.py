"""The job's own limit on an attempt: when it is over, the attempt drains itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.runtime.clock import Clock

SOURCE = "job_timeout"


async def hear_job_timeout(
    timeout_s: float, clock: Clock, *, epoch: int, hear: Callable[[Notice], None]
) -> None:
    """A HARD notice after this long. It states no deadline: the configured grace counts."""
    await asyncio.sleep(timeout_s)
    hear(
        Notice(
            source=SOURCE,
            native_id=f"epoch-{epoch}",
            cause=Cause.JOB_TIMEOUT,
            notice_class=NoticeClass.HARD,
            deadline_unix_ms=None,
            received_unix_ms=clock.now_unix_ms(),
            detail=f"the attempt ran for {timeout_s:g} s, its configured limit",
        )
    )
