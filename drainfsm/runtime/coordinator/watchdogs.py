"""What the coordinator looks at now and then: silent nodes, and whether it has been fenced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from drainfsm.core.deadline import window_budget
from drainfsm.core.decide_save import does_not_fit
from drainfsm.core.inputs import AnyInput, ReportFenced
from drainfsm.core.state import State
from drainfsm.errors import DrainfsmError, FencedError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.node_reports import NodeReports
from drainfsm.runtime.coordinator.nodes import Nodes
from drainfsm.runtime.coordinator.publisher import Publisher
from drainfsm.runtime.threads import in_thread
from drainfsm.runtime.wire import node_messages as n

FENCE_CHECK_S = 30.0
"""An attempt that was replaced stops training within this; it can publish nothing anyway."""

FENCE_ANSWER_S = 20.0
MISSING_TOLD_MAX = 8
WINDOW_CHECK_S = 5.0


async def watch_silence(
    nodes: Nodes, config: RunConfig, clock: Clock, lost: Callable[[int, str], None]
) -> None:
    """Send heartbeats, and report nodes that send none."""
    while True:
        await asyncio.sleep(config.heartbeat_s)
        nodes.tell(n.Heartbeat(now_unix_ms=clock.now_unix_ms()))
        for node in nodes.joined:
            silent_ms = nodes.silent_for_ms(node)
            if node != config.node_rank and silent_ms > config.silence_s * 1_000:
                lost(node, f"node {node} has said nothing for {silent_ms / 1_000:.1f} s")


async def watch_fence(publisher: Publisher, submit: Callable[[AnyInput], Any]) -> None:
    while True:
        await asyncio.sleep(FENCE_CHECK_S)
        by_epoch = await fenced_by(publisher, timeout_s=FENCE_ANSWER_S)
        if by_epoch is not None:
            submit(ReportFenced(by_epoch=by_epoch))
            return


async def fenced_by(publisher: Publisher, *, timeout_s: float) -> int | None:
    """The newest epoch, if it is not ours; None: it is, or the store does not answer in time."""
    with contextlib.suppress(TimeoutError, DrainfsmError, OSError):
        try:
            async with asyncio.timeout(timeout_s):
                await in_thread("fence", publisher.check_not_fenced)
        except FencedError as error:
            return error.newest_epoch
    return None


async def watch_attachment(
    reports: NodeReports, config: RunConfig, warn: Callable[[str], None]
) -> None:
    """A job that never attaches trains on, but no drain of it can save anything: say so once."""
    await asyncio.sleep(config.attach_s)
    if missing := reports.not_formed:
        nodes = ", ".join(str(node) for node in missing[:MISSING_TOLD_MAX])
        warn(
            f"after {config.attach_s:g} s not every rank of node(s) {nodes} has attached; until "
            "they do, a drain saves nothing. Does the training script call drainfsm.attach()?"
        )


async def watch_window(
    reports: NodeReports, state: Callable[[], State], warn: Callable[[str], None]
) -> None:
    """Warn in advance that a drain with the configured grace would save nothing: once, and again
    when that has changed."""
    fitted = True
    while True:
        await asyncio.sleep(WINDOW_CHECK_S)
        now = state()
        if now.phase.active or not now.attempt.load.save_bytes or not reports.step_ms:
            continue
        budget = window_budget(now.attempt, step_ms=reports.step_ms)
        if fitted and not budget.fits:
            warn(
                f"a notice of --grace {now.attempt.grace_ms / 1_000:g} s would save nothing: "
                f"{does_not_fit(budget)} (steps take up to {reports.step_ms} ms). A longer grace, "
                "shorter steps or a faster store; periodic saves keep what was done until then"
            )
        fitted = budget.fits
