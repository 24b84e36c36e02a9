"""One cloud on loopback: its metadata server, its adapter, and what can happen to an instance."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

from drainfsm.adapter import AdapterContext, NoticeSource
from drainfsm.testing.metadata import (
    AlibabaMetadataServer,
    AwsMetadataServer,
    AzureMetadataServer,
    Fault,
    GcpMetadataServer,
    MetadataServer,
    TencentMetadataServer,
)
from drainfsm_adapters.auto import FACTORIES

CLOCK_AHEAD_MS = 7_300
"""Every server's clock is off, so that a deadline that was not corrected shows."""

LEAD_MS = 30_000
"""Google states no instant, but gives a Spot VM so long."""

EVENT = "instance-event-0aaaabbbbccccdddd"


class Stage(Protocol):
    """Instants are by the agent's clock."""

    @property
    def cloud(self) -> str: ...
    @property
    def server(self) -> MetadataServer: ...
    @property
    def options(self) -> dict[str, str]: ...

    async def interrupt(self, in_ms: int) -> int:
        """The HARD notice; returns when the machine goes."""

    async def repeat(self) -> None:
        """The same, in every way in which this cloud repeats itself."""


class SoftStage(Stage, Protocol):
    """A cloud that also has events that may move."""

    def plan(self, in_ms: int) -> int:
        """A SOFT event, or another time for it; returns when."""

    def cancel(self) -> None: ...


class AwsStage:
    cloud = "aws"

    def __init__(self) -> None:
        self.server = AwsMetadataServer(clock_ahead_ms=CLOCK_AHEAD_MS)
        self.options = {"poll_s": "2"}

    async def interrupt(self, in_ms: int) -> int:
        return self.server.interrupt(in_ms=in_ms)

    async def repeat(self) -> None:
        """Restated later at every poll; gone; back."""
        self.server.interrupt(in_ms=120_000, slides=True)
        await asyncio.sleep(5)
        for key in ("spot/instance-action", "spot/termination-time"):
            self.server.put(key, None)
        await asyncio.sleep(3)
        self.server.interrupt(in_ms=120_000)
        await asyncio.sleep(3)

    def plan(self, in_ms: int) -> int:
        return self.server.schedule(EVENT, in_ms=in_ms)

    def cancel(self) -> None:
        self.server.settle(EVENT, "canceled")


class GcpStage:
    cloud = "gcp"

    def __init__(self) -> None:
        self.server = GcpMetadataServer(clock_ahead_ms=CLOCK_AHEAD_MS)
        self.options = {"long_poll_s": "5"}

    async def interrupt(self, in_ms: int) -> int:
        """The lead time is fixed: less of it is left if the server could not be asked before."""
        if in_ms >= LEAD_MS:
            return self.server.preempt() + LEAD_MS
        self.server.fail(Fault.UNAVAILABLE)
        goes_unix_ms = self.server.preempt() + LEAD_MS
        await asyncio.sleep((LEAD_MS - in_ms) / 1_000)
        self.server.heal()
        return goes_unix_ms

    async def repeat(self) -> None:
        """Long polls that return for nothing; FALSE; TRUE again."""
        self.server.wake_for_nothing(count=3)
        await asyncio.sleep(2)
        self.server.put("preempted", "FALSE")
        await asyncio.sleep(1)
        self.server.preempt()
        await asyncio.sleep(1)

    def plan(self, in_ms: int) -> int:
        return self.server.plan_maintenance(in_ms=in_ms)

    def cancel(self) -> None:
        self.server.put("upcoming-maintenance", "NONE")


class AzureStage:
    cloud = "azure"

    def __init__(self) -> None:
        self.server = AzureMetadataServer(clock_ahead_ms=CLOCK_AHEAD_MS)
        self.options: dict[str, str] = {}
        self._event_id = ""

    async def interrupt(self, in_ms: int) -> int:
        self._event_id, goes_unix_ms = self.server.schedule("Preempt", in_ms=in_ms)
        return goes_unix_ms

    async def repeat(self) -> None:
        """A new incarnation with a stranger's event; gone; back."""
        self.server.schedule("Reboot", in_ms=900_000, resources=("gpu-7",))
        await asyncio.sleep(2)
        self.server.remove(self._event_id)
        await asyncio.sleep(2)
        self.server.schedule("Preempt", in_ms=180_000, event_id=self._event_id)
        await asyncio.sleep(2)

    def plan(self, in_ms: int) -> int:
        self._event_id, at_unix_ms = self.server.schedule(
            "Redeploy", in_ms=in_ms, event_id=self._event_id
        )
        return at_unix_ms

    def cancel(self) -> None:
        self.server.remove(self._event_id)


class TerminationStage:
    """Alibaba and Tencent: nothing but the one instant."""

    def __init__(self, cloud: str, server: AlibabaMetadataServer) -> None:
        self.cloud = cloud
        self.server = server
        self.options = {"poll_s": "2"}

    async def interrupt(self, in_ms: int) -> int:
        return self.server.interrupt(in_ms=in_ms)

    async def repeat(self) -> None:
        """Restated later."""
        self.server.interrupt(in_ms=130_000)
        await asyncio.sleep(3)
        self.server.interrupt(in_ms=140_000)
        await asyncio.sleep(3)


SOFT_STAGES: dict[str, Callable[[], SoftStage]] = {
    "aws": AwsStage,
    "gcp": GcpStage,
    "azure": AzureStage,
}
STAGES: dict[str, Callable[[], Stage]] = {
    **SOFT_STAGES,
    "alibaba": lambda: TerminationStage(
        "alibaba", AlibabaMetadataServer(clock_ahead_ms=CLOCK_AHEAD_MS)
    ),
    "tencent": lambda: TerminationStage(
        "tencent", TencentMetadataServer(clock_ahead_ms=CLOCK_AHEAD_MS)
    ),
}


def adapter_on(stage: Stage, options: dict[str, str] | None = None) -> NoticeSource:
    """The cloud's own adapter, pointed at the stage's server."""
    context = AdapterContext(
        job_id="story",
        node_rank=0,
        node_count=1,
        grace_ms=30_000,
        options={**stage.options, **(options or {})},
    )
    variable = stage.server.variable
    before = os.environ.get(variable)
    os.environ[variable] = stage.server.endpoint
    try:
        return FACTORIES[stage.cloud](context)
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before
