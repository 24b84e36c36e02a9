"""The adapters' last acts, of which some take the machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from drainfsm.adapter import Adapter, AdapterContext, Departure
from drainfsm.runtime.agent.adapters import RunningAdapters
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig


class Acting:
    """Takes its time, and tells when it has begun and ended."""

    def __init__(self, name: str, told: list[str]) -> None:
        self._name = name
        self._told = told

    async def left(self, departure: Departure) -> str:
        self._told.append(f"{self._name} begins")
        await asyncio.sleep(0.05)
        self._told.append(f"{self._name} ends")
        return ""


class Acknowledging(Acting):
    takes_machine = True


class Hanging(Acting):
    async def left(self, departure: Departure) -> str:
        await asyncio.sleep(60)
        return ""


def told_by(first: type[Acting], *, timeout_ms: int) -> list[str]:
    told: list[str] = []
    made = {"cloud": Acknowledging("cloud", told), "scheduler": first("scheduler", told)}

    def load(name: str, context: AdapterContext) -> Adapter:
        return made[name]

    config = RunConfig(
        job="job",
        store="store",
        state_dir=Path("state"),
        command=("true",),
        source=("cloud", "scheduler"),
    )
    adapters = RunningAdapters(config, Clock(), warn=told.append, load=load)
    asyncio.run(adapters.left(Departure(requeue=True, timeout_ms=timeout_ms)))
    return told


def test_what_takes_the_machine_waits_for_the_requeue() -> None:
    assert told_by(Acting, timeout_ms=5_000) == [
        "scheduler begins",
        "scheduler ends",
        "cloud begins",
        "cloud ends",
    ]


def test_a_requeue_that_takes_all_the_time_leaves_the_machine_to_the_platform() -> None:
    """It goes by itself at its time. Given up sooner than it must, nothing would be gained."""
    (scheduler, *_) = told_by(Hanging, timeout_ms=100)
    assert scheduler.startswith("scheduler: its last act took longer than ")
