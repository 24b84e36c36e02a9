"""Whole notice stories, told by each cloud's server to its adapter, and what came of them.

``python -m drainfsm_kit.cloud_stories`` prints the table of docs/adapters.md.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from drainfsm.runtime.clock import Clock
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_kit.cloud_stage import SOFT_STAGES, STAGES, SoftStage, Stage, adapter_on

AT_ONCE_MAX = 4
"""Stories that run side by side: more would measure this machine, not the adapters."""

UNKNOWN_S = 4.0
SOON = {"unknown_s": f"{UNKNOWN_S:g}"}


class Came(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter made of a story."""

    notices: int
    withdrawn: int = 0
    unknown: bool = False
    recovered: bool = False
    error_ms: int | None = None
    """Deadline of what stands in the end, minus the true one; negative: early."""

    skew_ms: int = 0
    reaction_ms: int | None = None
    """From the change at the server, to the sink."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    notices: int
    withdrawn: int = 0
    unknown: bool = False
    recovered: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    cloud: str
    story: str
    expected: Expected
    came: Came

    @property
    def as_expected(self) -> bool:
        """The right statements, and no deadline that is later than the true one may be."""
        fields = Expected.__struct_fields__
        told = all(getattr(self.came, name) == getattr(self.expected, name) for name in fields)
        late_ms = 0 if self.came.error_ms is None else self.came.error_ms - self.came.skew_ms
        return told and late_ms <= 0


now_unix_ms = Clock().now_unix_ms


def _came(sink: RecordingSink, *, goes_unix_ms: int | None = None, since: int = 0) -> Came:
    deadlines = [deadline for deadline in sink.standing.values() if deadline is not None]
    error_ms = min(deadlines) - goes_unix_ms if deadlines and goes_unix_ms is not None else None
    last = sink.notices[-1] if sink.notices else None
    return Came(
        notices=len(sink.identities),
        withdrawn=len(sink.withdrawals),
        unknown=bool(sink.silences),
        recovered=bool(sink.silences) and not sink.unknown_now,
        error_ms=error_ms,
        skew_ms=last.clock_skew_ms if last else 0,
        reaction_ms=last.received_unix_ms - since if last and since else None,
    )


async def _heard(stage: Stage, sink: RecordingSink, *, in_ms: int) -> tuple[int, int]:
    """Interrupt; the true deadline, and when the server began to say so."""
    await asyncio.sleep(2.5)
    goes_unix_ms = await stage.interrupt(in_ms)
    since = now_unix_ms()
    await sink.until(lambda: bool(sink.notices))
    return goes_unix_ms, since


async def normal(stage: Stage) -> Came:
    with stage.server:
        async with watching(adapter_on(stage)) as sink:
            goes, since = await _heard(stage, sink, in_ms=120_000)
            return _came(sink, goes_unix_ms=goes, since=since)


async def late(stage: Stage) -> Came:
    with stage.server:
        async with watching(adapter_on(stage)) as sink:
            goes, since = await _heard(stage, sink, in_ms=10_000)
            return _came(sink, goes_unix_ms=goes, since=since)


async def before_the_agent(stage: Stage) -> Came:
    """It is there when the agent starts, and half gone."""
    with stage.server:
        goes = await stage.interrupt(15_000)
        since = now_unix_ms()
        async with watching(adapter_on(stage)) as sink:
            await sink.until(lambda: bool(sink.notices))
            return _came(sink, goes_unix_ms=goes, since=since)


async def duplicate(stage: Stage) -> Came:
    with stage.server:
        async with watching(adapter_on(stage)) as sink:
            goes, since = await _heard(stage, sink, in_ms=120_000)
            first = _came(sink, goes_unix_ms=goes, since=since)
            await stage.repeat()
            again = _came(sink, goes_unix_ms=goes, since=since)
            return msgspec.structs.replace(again, reaction_ms=first.reaction_ms)


async def moved(stage: SoftStage, *, before_ms: int, after_ms: int) -> Came:
    with stage.server:
        async with watching(adapter_on(stage)) as sink:
            stage.plan(before_ms)
            await sink.until(lambda: bool(sink.notices))
            at = stage.plan(after_ms)
            since = now_unix_ms()
            await sink.until(lambda: len(sink.notices) == 2)
            return _came(sink, goes_unix_ms=at, since=since)


async def moved_later(stage: SoftStage) -> Came:
    return await moved(stage, before_ms=3_600_000, after_ms=7_200_000)


async def moved_earlier(stage: SoftStage) -> Came:
    return await moved(stage, before_ms=7_200_000, after_ms=3_600_000)


async def withdrawn(stage: SoftStage) -> Came:
    with stage.server:
        async with watching(adapter_on(stage)) as sink:
            stage.plan(3_600_000)
            await sink.until(lambda: bool(sink.notices))
            stage.cancel()
            since = now_unix_ms()
            await sink.until(lambda: bool(sink.withdrawals))
            took_ms = now_unix_ms() - since
            return msgspec.structs.replace(_came(sink), reaction_ms=took_ms)


async def dying_midway(stage: Stage) -> Came:
    """After the notice the endpoint is gone for a while: nothing is cleared or repeated."""
    with stage.server:
        async with watching(adapter_on(stage, SOON)) as sink:
            goes, since = await _heard(stage, sink, in_ms=120_000)
            first = _came(sink, goes_unix_ms=goes, since=since)
            stage.server.stop()
            await sink.until(lambda: bool(sink.unknown_now))
            stage.server.start()
            await sink.until(lambda: not sink.unknown_now)
            again = _came(sink, goes_unix_ms=goes, since=since)
            return msgspec.structs.replace(again, reaction_ms=first.reaction_ms)


async def never_there(stage: Stage) -> Came:
    with stage.server:
        pass  # takes a port, on which nothing listens from now on
    since = now_unix_ms()
    async with watching(adapter_on(stage, SOON)) as sink:
        await sink.until(lambda: bool(sink.silences))
        return msgspec.structs.replace(_came(sink), reaction_ms=now_unix_ms() - since)


HEAD = (
    "| cloud | story | notices | withdrawn | UNKNOWN | deadline error | stated skew "
    "| reaction | as expected |"
)
S = TypeVar("S")
Told = Callable[[], Awaitable[Came]]
STORIES: dict[str, tuple[Callable[[Stage], Awaitable[Came]], Expected]] = {
    "normal": (normal, Expected(notices=1)),
    "late, 10 s left": (late, Expected(notices=1)),
    "there before the agent": (before_the_agent, Expected(notices=1)),
    "duplicate": (duplicate, Expected(notices=1)),
    "endpoint dies midway": (dying_midway, Expected(notices=1, unknown=True, recovered=True)),
    "endpoint never there": (never_there, Expected(notices=0, unknown=True)),
}
SOFT_STORIES: dict[str, tuple[Callable[[SoftStage], Awaitable[Came]], Expected]] = {
    "moved later": (moved_later, Expected(notices=2, withdrawn=1)),
    "moved earlier": (moved_earlier, Expected(notices=1)),
    "withdrawn": (withdrawn, Expected(notices=1, withdrawn=1)),
}


async def _tell(story: Callable[[S], Awaitable[Came]], stage: Callable[[], S]) -> Came:
    return await story(stage())


def plays() -> dict[tuple[str, str], tuple[Expected, Told]]:
    """Every story of every cloud, by the names of both."""
    found: dict[tuple[str, str], tuple[Expected, Told]] = {}
    for cloud, stage in STAGES.items():
        for name, (story, expected) in STORIES.items():
            found[cloud, name] = expected, partial(_tell, story, stage)
    for cloud, soft in SOFT_STAGES.items():
        for name, (told, expected) in SOFT_STORIES.items():
            found[cloud, name] = expected, partial(_tell, told, soft)
    return dict(sorted(found.items(), key=lambda play: list(STAGES).index(play[0][0])))


async def play_all(*, at_once_max: int = AT_ONCE_MAX) -> list[Row]:
    turns = asyncio.Semaphore(at_once_max)

    async def play(cloud: str, story: str, expected: Expected, told: Told) -> Row:
        async with turns:
            return Row(cloud=cloud, story=story, expected=expected, came=await told())

    return await asyncio.gather(
        *(play(*names, expected, told) for names, (expected, told) in plays().items())
    )


def table(rows: list[Row]) -> str:
    lines = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    for row in rows:
        came = row.came
        lines.append(
            f"| {row.cloud} | {row.story} | {came.notices} | {came.withdrawn} | "
            f"{_said(came)} | {_s(came.error_ms)} | "
            f"{_s(came.skew_ms if came.error_ms is not None else None)} | "
            f"{_s(came.reaction_ms)} | {'yes' if row.as_expected else 'NO'} |"
        )
    return "\n".join(lines)


def _said(came: Came) -> str:
    if not came.unknown:
        return ""
    return "reported, recovered" if came.recovered else "reported"


def _s(duration_ms: int | None) -> str:
    return "" if duration_ms is None else f"{duration_ms / 1_000:.2f} s"


def main() -> int:
    rows = asyncio.run(play_all())
    sys.stdout.write(table(rows) + "\n")
    return 0 if all(row.as_expected for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
