"""The lifecycle as a picture, from the table: Mermaid by ``transitions``, SVG by a layout of ours.

Rows that leave the state as it is are not arrows; ``table`` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from transitions.extensions import GraphMachine

from drainfsm.core.lifecycle import LIFECYCLE, RUNNING, Step
from drainfsm.core.state import ACTIVE, Phase
from drainfsm.machine import transition_rows

TITLE = "Lifecycle of a drain"


class Arrow(NamedTuple):
    """An event that leads from one state to another, perhaps under a condition."""

    event: str
    source: str
    dest: str
    conditions: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        conditions = f" [{', '.join(self.conditions)}]" if self.conditions else ""
        return self.event + conditions


class _Model:
    """Gets its methods from ``transitions``."""


def machine() -> tuple[GraphMachine, Any]:
    """The lifecycle as a ``transitions`` machine that can draw itself; only what moves."""
    model: Any = _Model()
    built = GraphMachine(
        model=model,
        states=[phase.value for phase in Phase],
        initial=Phase.IDLE.value,
        transitions=[row for row in transition_rows() if row["dest"] is not None],
        auto_transitions=False,
        send_event=True,
        show_conditions=True,
        graph_engine="mermaid",
        title=TITLE,
    )
    return built, model


def arrows() -> list[Arrow]:
    """Every arrow of the machine, in the order of the table."""
    built, _ = machine()
    return [
        Arrow(
            event,
            transition.source,
            str(transition.dest),
            tuple(str(getattr(c.func, "__name__", c.func)) for c in transition.conditions),
        )
        for event, found in built.events.items()
        for transitions in found.transitions.values()
        for transition in transitions
    ]


def mermaid() -> str:
    _, model = machine()
    source = str(model.get_graph().source)
    lines = [line.rstrip() for line in source.splitlines()]
    coloured = ("  classDef", "  Class")  # of a machine that runs: this one is only drawn
    return "\n".join(line for line in lines if line and not line.startswith(coloured)) + "\n"


def table() -> str:
    """All rows as Markdown: the event, where it is allowed, where it leads, on what condition."""
    head = ["| event | allowed in | leads to | condition |", "|---|---|---|---|"]
    return "\n".join([*head, *(_row(step) for step in LIFECYCLE)]) + "\n"


def _row(step: Step) -> str:
    condition = "" if step.guard is None else (step.guard.__doc__ or step.guard.__name__)
    dest = "stays" if step.dest is None else f"`{step.dest.value}`"
    return f"| `{step.kind}` | {sources_text(step.sources)} | {dest} | {condition} |"


def sources_text(sources: Iterable[Phase]) -> str:
    names = frozenset(sources)
    for group, text in ((frozenset(Phase), "any"), (RUNNING, "running"), (ACTIVE, "active")):
        if names == group:
            return text
    return ", ".join(f"`{phase.value}`" for phase in Phase if phase in names)


# --- SVG ----------------------------------------------------------------------------------------

BOX_W, BOX_H = 104, 40
GAP = 234
WIDTH, HEIGHT = 2_080, 660
CHAIN = (
    Phase.IDLE,
    Phase.SCHEDULED,
    Phase.NOTICED,
    Phase.QUIESCING,
    Phase.QUIESCED,
    Phase.SAVING,
    Phase.STAGED,
    Phase.DURABLE,
    Phase.PUBLISHED,
)
"""Left to right: a drain that goes well."""

PLACES = {phase: (90 + GAP * place, 170) for place, phase in enumerate(CHAIN)} | {
    Phase.CANCELLED: (90 + GAP, 480),
    Phase.LEAVING: (90 + GAP * 5, 340),
    Phase.LOST: (90 + GAP * 3, 610),
    Phase.EXITED: (90 + GAP * 8, 610),
}
"""Centres of the boxes. A state that is not here cannot be drawn: a test says so."""

GROUPS = {"active": (ACTIVE, (260, 80, 2_034, 410)), "running": (RUNNING, (20, 50, 2_060, 540))}
"""An event that is allowed in a whole group has one arrow, from the group's frame."""

STYLE = """
text { font: 12px sans-serif; fill: #1a1a1a; text-anchor: middle }
.event { font-size: 11px; fill: #333 }
.halo { font-size: 11px; stroke: #fff; stroke-width: 4px }
.box { fill: #eef3fb; stroke: #345; stroke-width: 1.3 }
.over { fill: #f3f3f3; stroke: #345; stroke-width: 2.4 }
.frame { fill: none; stroke: #99a; stroke-dasharray: 5 4 }
.frame-name { fill: #667; text-anchor: start; font-style: italic }
.arrow { fill: none; stroke: #345; stroke-width: 1.2; marker-end: url(#head) }
"""


def svg() -> str:
    lines = list(_lines())
    texts = [line for line in lines if line.startswith("<text")]
    paths = [line for line in lines if not line.startswith("<text")]
    body = "\n".join([*_frames(), *paths, *_boxes(), *texts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{TITLE}">\n<title>{TITLE}</title>\n<style>{STYLE}</style>\n'
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="#345"/>'
        f'</marker></defs>\n<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _frames() -> Iterator[str]:
    for name, (_, (left, top, right, bottom)) in GROUPS.items():
        yield (
            f'<rect class="frame" x="{left}" y="{top}" width="{right - left}" '
            f'height="{bottom - top}" rx="14"/>'
        )
        yield f'<text class="frame-name" x="{left + 12}" y="{top + 17}">{name}</text>'


def _boxes() -> Iterator[str]:
    for phase, (x, y) in PLACES.items():
        kind = "over" if phase.over else "box"
        yield (
            f'<rect class="{kind}" x="{x - BOX_W // 2}" y="{y - BOX_H // 2}" width="{BOX_W}" '
            f'height="{BOX_H}" rx="8"/>'
        )
        yield f'<text x="{x}" y="{y + 4}">{phase.value}</text>'


def _lines() -> Iterator[str]:
    """One line for each pair of states, one for each group that an event leaves as a whole."""
    single: dict[tuple[str, str], list[str]] = {}
    whole: dict[str, Arrow] = {}
    for arrow in arrows():
        group = _group_of(arrow.event, arrow.dest)
        if group:
            whole[arrow.event] = arrow._replace(source=group)
        else:
            single.setdefault((arrow.source, arrow.dest), []).append(arrow.label)
    for arrow in whole.values():
        yield from _from_frame(arrow)
    for (source, dest), labels in single.items():
        yield from _between(PLACES[Phase(source)], PLACES[Phase(dest)], labels)


def _group_of(event: str, dest: str) -> str:
    """The group whose every state has this event to one and the same state; empty: none."""
    rows = [s for s in LIFECYCLE if s.kind == event and s.dest is not None and s.dest == dest]
    sources = frozenset().union(*(row.sources for row in rows))
    return next((name for name, (phases, _) in GROUPS.items() if phases == sources), "")


def _from_frame(arrow: Arrow) -> Iterator[str]:
    _, (_, _, _, bottom) = GROUPS[arrow.source]
    x, y = PLACES[Phase(arrow.dest)]
    yield f'<path class="arrow" d="M{x} {bottom}L{x} {y - BOX_H // 2}"/>'
    text = f"{arrow.label}, from every {arrow.source} state"
    yield from _text(x, (bottom + y - BOX_H // 2) // 2 + 4, text)


def _between(source: tuple[int, int], dest: tuple[int, int], labels: list[str]) -> Iterator[str]:
    (x1, y1), (x2, y2) = source, dest
    if y1 == y2:
        path, at = _sideways(x1, x2, y1)
    else:
        aside = 14 if y2 < y1 else -14  # there may be an arrow back
        path, at = _up_or_down(x1 + aside, y1, x2 + aside, y2)
    yield f'<path class="arrow" d="{path}"/>'
    lines = [part for label in labels for part in label.replace(" [", "\n[").split("\n")]
    for line, text in enumerate(lines):
        yield from _text(at[0], at[1] - 13 * (len(lines) - 1 - line), text)


Path = tuple[str, tuple[int, int]]
"""What to draw, and where its label goes."""


def _sideways(x1: int, x2: int, y: int) -> Path:
    if x2 - x1 <= GAP:
        return f"M{x1 + BOX_W // 2} {y}L{x2 - BOX_W // 2} {y}", ((x1 + x2) // 2, y - 8)
    start, top = y - BOX_H // 2, y - 62
    return f"M{x1} {start}C{x1} {top} {x2} {top} {x2} {start}", ((x1 + x2) // 2, top + 18)


def _up_or_down(x1: int, y1: int, x2: int, y2: int) -> Path:
    sign = 1 if y2 > y1 else -1
    start, end = y1 + sign * BOX_H // 2, y2 - sign * BOX_H // 2
    middle = (start + end) // 2
    along = 3 if abs(x1 - x2) <= GAP else 8  # the long way is flat: the label goes near its start
    at = (x1 + (x2 - x1) // along, start + (end - start) * (2 if x1 != x2 else 1) // 5)
    return f"M{x1} {start}C{x1} {middle} {x2} {middle} {x2} {end}", at


def _text(x: int, y: int, text: str) -> Iterator[str]:
    """Twice: lines that run behind it stop short of it."""
    for kind in ("halo", "event"):
        yield f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'
