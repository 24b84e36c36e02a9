"""The countdown on the terminal: states, budget bar, ranks, events."""

from __future__ import annotations

import time
from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from drainfsm.core import events as e
from drainfsm.core.deadline import budget_of
from drainfsm.core.events import UnknownFact, kind_of
from drainfsm.core.records import Record
from drainfsm.core.state import Phase, State
from drainfsm.machine import DrainMachine

PATH = (
    "noticed", "quiescing", "quiesced", "saving", "staged", "durable", "published", "exited",
)  # fmt: skip
EVENT_LINES = 12
BAR_WIDTH = 60
TERM_STYLES = {"quiesce": "yellow", "durable": "blue", "commit": "magenta"}
WAIT_TOLD_EVERY_S = 5.0
"""On an output that is not a terminal."""


class Display:
    """Follows the attempts by their records, as a dashboard elsewhere would."""

    def __init__(self, console: Console, *, steps: int) -> None:
        self.console = console
        self.title = "starting"
        self.step = -1
        self.steps = steps
        self.waiting = ""
        self._wait_told_s = 0.0
        self._machine: DrainMachine | None = None
        self._window_ms = 0
        self._events: deque[tuple[int, int, str, str]] = deque(maxlen=EVENT_LINES)
        self.live = Live(console=console, refresh_per_second=8, get_renderable=self.render)

    def follow(self, record: Record, machine: DrainMachine) -> None:
        """A record was folded into ``machine``."""
        self._machine = machine
        drain = machine.drain
        for event in record.events:
            if isinstance(event, e.NoticeReceived) and drain and len(drain.notices) == 1:
                self._window_ms = event.effective_deadline_unix_ms - event.budget.now_unix_ms
            if isinstance(event, UnknownFact) or not isinstance(event, e.RankQuiesced):
                line = (record.epoch, record.at_unix_ms, kind_of(event), _detail(event))
                self._events.append(line)
                if not self.console.is_terminal:
                    self.console.print(f"  epoch {line[0]}  {line[2]:20} {line[3]}")

    def say(self, title: str) -> None:
        self.title = title
        if not self.console.is_terminal:
            self.console.print(title)

    def reached(self, step: int) -> None:
        self.step = step

    def wait(self, seconds: float, what: str) -> None:
        """Called again and again while nothing else happens, to show that a slow machine is
        working."""
        self.waiting = f"{what}, {seconds:.0f} s so far"
        if not self.console.is_terminal and seconds >= self._wait_told_s + WAIT_TOLD_EVERY_S:
            self._wait_told_s = seconds
            self.console.print(f"  … {self.waiting}")

    def go_on(self) -> None:
        self.waiting, self._wait_told_s = "", 0.0

    def render(self) -> Panel:
        state = None if self._machine is None else self._machine.folded
        parts: list[Text | Table] = [self._progress()]
        parts.append(_path(Phase.IDLE if state is None else state.phase))
        if state is not None and state.phase.active:
            parts += [self._bar(state), _ranks(state)]
        parts.append(self._recent())
        return Panel(Group(*parts), title=self.title, border_style="cyan")

    def _progress(self) -> Text:
        done = BAR_WIDTH * (self.step + 1) // max(1, self.steps)
        bar = "━" * done + "─" * (BAR_WIDTH - done)
        text = Text(f"training  {bar} step {self.step} of {self.steps}")
        return text.append(f"  {self.waiting}", style="dim") if self.waiting else text

    def _bar(self, state: State) -> Text:
        """What is left of the window, and how much of it is reserved."""
        now_unix_ms = time.time_ns() // 1_000_000
        budget = budget_of(state, now_unix_ms=now_unix_ms)
        scale = BAR_WIDTH / max(1, self._window_ms)
        text = Text("deadline  ")
        width = 0
        terms = [(name, term.value_ms, TERM_STYLES[name]) for name, term in budget.terms]
        for name, term_ms, style in (*terms, ("exit", budget.exit_margin_ms, "red")):
            cells = round(term_ms * scale)
            text.append("█" * cells, style=style)
            width += cells
            if term_ms:
                text.append(f"{name} " if cells > len(name) + 4 else "", style=style)
        spare = max(0, round(budget.remaining_ms * scale) - width)
        text.append("█" * spare, style="green")
        text.append(f" {budget.remaining_ms / 1_000:.1f} s left", style="bold")
        return text

    def _recent(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for epoch, at_unix_ms, kind, detail in self._events:
            clock = time.strftime("%H:%M:%S", time.localtime(at_unix_ms / 1_000))
            stamp = f"{clock}.{at_unix_ms % 1_000:03d}"
            table.add_row(f"[dim]{stamp}[/]", f"[dim]epoch {epoch}[/]", kind, f"[dim]{detail}[/]")
        return table


def _path(phase: Phase) -> Text:
    text = Text("state     ")
    for name in PATH:
        style = "reverse green" if phase == name else "dim"
        text.append(f" {name} ", style=style)
    if phase not in PATH:
        text.append(f" {phase} ", style="reverse yellow")
    return text


def _ranks(state: State) -> Text:
    text = Text("ranks     ")
    stop = state.stop
    if stop is None:
        return text.append("running")
    for node in stop.nodes:
        style = "yellow" if node.node in stop.waiting else "reverse green"
        for rank in node.ranks:
            text.append(f" {rank} ", style=style)
    return text.append(f"  all stop after step {stop.step}")


def _detail(event: e.Event | UnknownFact) -> str:
    match event:
        case e.NoticeReceived():
            window_ms = event.deadline_unix_ms - event.budget.now_unix_ms
            return f"{event.notice.cause}, {window_ms / 1_000:.1f} s"
        case e.StopStepAgreed():
            return f"step {event.stop_step}"
        case e.SaveDecided() | e.SaveSkipped():
            budget = event.budget
            sign = ">" if budget.fits else "<="
            return f"remaining {budget.remaining_ms} {sign} needed {budget.needed_ms} ms"
        case e.BytesStaged():
            return f"{event.staged_bytes / 1e6:.1f} MB after {event.staged_ms} ms"
        case e.Durable():
            return f"{event.durable_bytes / 1e6:.1f} MB after {event.durable_ms} ms"
        case e.ManifestPublished() | e.CheckpointCommitted():
            return f"{event.generation_id} (slot {event.slot})"
        case e.CheckpointRestored():
            return f"{event.generation_id}, step {event.step}"
        case e.HealthyStepReached():
            return f"step {event.step}"
        case e.Exited():
            return f"code {event.exit_code}, {event.remaining_ms / 1_000:.1f} s to spare"
        case e.NodeCordoned():
            return event.outcome
        case _:
            return ""
