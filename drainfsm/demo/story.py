"""``drainfsm demo``: two drains of one training job, judged at the end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from drainfsm.demo.cluster import NODE_COUNT, RANKS_PER_NODE, DemoAttempt, Place
from drainfsm.demo.display import Display
from drainfsm.demo.summary import Histories, Result, explanations, summarize
from drainfsm.errors import DrainfsmError
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import connect
from drainfsm.machine import DrainMachine

STEPS = 90
EVERY_STEPS = 15
FIRST_NOTICE_STEP = 20
FIRST_WINDOW_S = 30.0
SECOND_NOTICE_AFTER_STEPS = 22
SECOND_WINDOW_S = 10.0
"""Less than quiesce + durable + commit + exit need: the save is skipped."""

PAUSE_MS = 40
"""Between steps, so that one can watch; the reference run has none."""

PHASE_S_MAX = 120.0
"""Longest wait for anything in the story; on a busy machine starts take a while."""

POLL_S = 0.1


class DemoError(DrainfsmError):
    """The demo could not be finished."""


class Story:
    """Starts attempts, hands in notices, follows the stream."""

    def __init__(self, place: Place, display: Display, *, nats_url: str) -> None:
        self.place = place
        self.display = display
        self.nats_url = nats_url
        self.attempts: list[DemoAttempt] = []
        self.histories: Histories = {}
        self._machines: dict[int, DrainMachine] = {}

    async def tell(self) -> None:
        follower = asyncio.create_task(self._follow())
        try:
            await self._attempts()
            await self._log_is_complete()
        finally:
            follower.cancel()
            for attempt in self.attempts:
                attempt.kill()

    async def _attempts(self) -> None:
        first = self._start("Attempt 1: the job trains on node-0 and node-1")
        await self._until_step(first, FIRST_NOTICE_STEP)
        self.display.say(f"Node 1 gets a notice: {FIRST_WINDOW_S:.0f} s to its end")
        await self._notify(first, in_s=FIRST_WINDOW_S)
        await self._ended(first, expected=75)

        resumed = self.place.last_step()
        second = self._start(
            "Attempt 2: node-2 in place of node-1, the job resumes at the next step"
        )
        await self._until_step(second, resumed + SECOND_NOTICE_AFTER_STEPS)
        self.display.say(f"A notice of only {SECOND_WINDOW_S:.0f} s: too short for a save")
        await self._notify(second, in_s=SECOND_WINDOW_S)
        await self._ended(second, expected=75)

        third = self._start(
            "Attempt 3: node-3 comes in, the job resumes from its last committed checkpoint"
        )
        await self._ended(third, expected=0)

    def _start(self, title: str) -> DemoAttempt:
        self.display.say(title)
        attempt = DemoAttempt(
            self.place,
            number=len(self.attempts) + 1,
            nats_url=self.nats_url,
            training=_training(self.place.losses, pause_ms=PAUSE_MS),
        )
        attempt.start()
        self.attempts.append(attempt)
        return attempt

    async def _until_step(self, attempt: DemoAttempt, step: int) -> None:
        expired, began = _timer(), time.monotonic()
        before = self.place.last_step()
        while (reached := self.place.last_step()) < step:
            self.display.reached(reached)
            if reached == before:
                self.display.wait(time.monotonic() - began, self._starting(attempt))
            else:
                self.display.go_on()
            if attempt.poll() is not None or expired():
                raise _broken(f"it ended or hung at step {reached}", attempt)
            await asyncio.sleep(POLL_S)

    def _starting(self, attempt: DemoAttempt) -> str:
        machine = self._machines.get(attempt.number)
        if machine is None:
            return "the agents claim the job"
        if not machine.folded.attempt.world_size:
            return "4 ranks import torch and attach"
        return "the first step: the model is restored and warms up"

    async def _notify(self, attempt: DemoAttempt, *, in_s: float) -> None:
        code = await asyncio.to_thread(attempt.notify, in_s=in_s, node=1)
        if code != 0:
            raise _broken(f"`drainfsm notify` exited with {code}", attempt)

    async def _ended(self, attempt: DemoAttempt, *, expected: int) -> None:
        expired = _timer()
        while (codes := attempt.poll()) is None:
            self.display.reached(self.place.last_step())
            if expired():
                raise _broken("it does not end", attempt)
            await asyncio.sleep(POLL_S)
        if codes != [expected] * NODE_COUNT:
            raise _broken(f"exit codes {codes}, expected {expected} from each agent", attempt)

    async def _log_is_complete(self) -> None:
        """The last records are still on their way through the broker."""
        expired = _timer()
        while any(self._exit_code(attempt.number) is None for attempt in self.attempts):
            if expired():
                raise DemoError("the stream does not hold the end of every attempt")
            await asyncio.sleep(POLL_S)

    def _exit_code(self, epoch: int) -> int | None:
        machine = self._machines.get(epoch)
        return None if machine is None else machine.attempt.exit_code

    async def _follow(self) -> None:
        connection = await connect(self.nats_url, timeout_s=PHASE_S_MAX)
        async for record in connection.follow(self.place.job):
            machine = self._machines.get(record.epoch)
            if machine is None:
                machine = DrainMachine.follow(job_id=record.job_id, epoch=record.epoch)
                self._machines[record.epoch] = machine
            if machine.apply(record):
                self.histories.setdefault(record.epoch, []).append(record)
                self.display.follow(record, machine)


def _timer() -> Callable[[], bool]:
    """Says whether a phase of the story has taken too long."""
    give_up = time.monotonic() + PHASE_S_MAX
    return lambda: time.monotonic() > give_up


def _broken(what: str, attempt: DemoAttempt) -> DemoError:
    return DemoError(f"attempt {attempt.number}: {what}\n{attempt.log_tail()}")


def _training(losses: Path, *, pause_ms: int) -> list[str]:
    options = ["--steps", str(STEPS), "--losses", str(losses), "--pause-ms", str(pause_ms)]
    return ["-m", "drainfsm.demo.training", *options]


def _reference(place: Place) -> Path:
    """The same training without any interruption and without an agent."""
    losses = place.root / "reference-losses.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(NODE_COUNT * RANKS_PER_NODE)]
    with (place.root / "reference.log").open("wb") as log:
        done = subprocess.run(
            [*command, *_training(losses, pause_ms=0)],
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        raise DemoError(f"the uninterrupted run failed: see {place.root / 'reference.log'}")
    return losses


def main(options: argparse.Namespace) -> int:
    """0 only if every criterion holds and the losses agree."""
    console = Console()
    started = time.monotonic()
    root = Path(options.dir) if options.dir else Path(tempfile.mkdtemp(prefix="drainfsm-demo-"))
    place = Place(root=root.absolute())
    place.prepare(every_steps=EVERY_STEPS)
    if place.losses.exists():
        raise DemoError(f"{place.root} holds an earlier demo: name another --dir")
    server = EmbeddedServer.start(place.root / "nats")
    display = Display(console, steps=STEPS)
    story = Story(place, display, nats_url=server.url)
    try:
        with display.live if console.is_terminal else contextlib.nullcontext():
            asyncio.run(story.tell())
            display.say("An uninterrupted run, to compare the losses")
            reference = _reference(place)
    finally:
        server.stop()
    result = summarize(
        place,
        story.attempts,
        story.histories,
        reference,
        duration_s=round(time.monotonic() - started, 1),
    )
    report(console, result, story.histories)
    if options.json:
        Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    console.print(f"Everything lies in {place.root}")
    return 0 if result.passed else 1


def report(console: Console, result: Result, histories: Histories) -> None:
    """The summary on the terminal."""
    for line in explanations(histories):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    drains = Table(title="Drains")
    for heading in ("", *(drain.drain_id for drain in result.drains)):
        drains.add_column(heading)
    for name in (
        "decision", "state", "last_trained_step", "saved_step", "resumed_step", "lost_steps",
        "lost_s",
    ):  # fmt: skip
        drains.add_row(name, *(str(getattr(drain, name)) for drain in result.drains))
    spare = [(d.deadline_unix_ms - d.exited_unix_ms) / 1_000 for d in result.drains]
    drains.add_row("left before the deadline", *(f"{seconds:.1f} s" for seconds in spare))
    for phase in dict.fromkeys(name for drain in result.drains for name in drain.phases_ms):
        drains.add_row(phase, *(f"{d.phases_ms.get(phase, '-')} ms" for d in result.drains))
    console.print(drains)
    console.print(
        f"Losses against the uninterrupted run: {result.compared_steps} compared, "
        f"largest difference {result.loss_max_abs_diff}"
    )
    for name, held in result.criteria.items():
        console.print(f"  {'pass' if held else 'FAIL'}  {name.replace('_', ' ')}")
    for wrong in result.rules_broken:
        console.print(f"  FAIL  {wrong}")
    console.print(f"{'Passed' if result.passed else 'FAILED'} in {result.duration_s} s")
