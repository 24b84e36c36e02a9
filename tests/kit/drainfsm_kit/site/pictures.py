"""Pictures for docs/why.md, drawn from what the real code decides and stores."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from drainfsm.core.budget import Budget
from drainfsm.core.manifest import Commit
from drainfsm.errors import FencedError
from drainfsm.store import CommitLog
from drainfsm.testing import MemoryStore, Scenario
from drainfsm.views.history import by_attempt
from drainfsm.views.status import status

RUNS = Path(__file__).parents[4] / "specs" / "models" / "runs.toml"
COLOURS = {
    "quiesce": "#4e79a7",
    "durable": "#59a14f",
    "commit": "#edc948",
    "exit": "#b07aa1",
}
WIDTH, BAR, LEFT = 860, 34, 150


def rule() -> str:
    """Three windows, and what the rule says to each: with the numbers of ``Budget``."""
    scenario = Scenario()
    windows_ms = (9_000, 20_000, 30_000)
    found = status(
        by_attempt(scenario.history), now_unix_ms=scenario.now_unix_ms, windows_ms=windows_ms
    )
    scale = (WIDTH - LEFT - 20) / max(one.budget.remaining_ms for one in found.answers)
    body: list[str] = []
    for row, one in enumerate(found.answers):
        top = 44 + row * 84
        word = "skipped" if one.reason else "saved"
        body.append(_text(10, top + 15, f"{one.window_ms // 1_000} s: {word}", weight=600))
        body.append(_text(10, top + 32, f"{one.budget.remaining_ms} ms left", size=11))
        body += _bar(one.budget, top, scale)
    title = "Save only if everything that is still to come fits into what is left"
    return _svg(300, title, body)


def _bar(budget: Budget, top: int, scale: float) -> Iterator[str]:
    terms = [(name, term.value_ms) for name, term in budget.terms]
    terms.append(("exit", budget.exit_margin_ms))
    at = float(LEFT)
    for number, (name, value_ms) in enumerate(terms):
        width, below = value_ms * scale, top + BAR + (14 if number % 2 == 0 else 27)
        yield _box(at, top, width, COLOURS[name])
        yield _text(at + 4, below, f"{name} {value_ms}", size=10)
        at += width
    end = LEFT + budget.remaining_ms * scale
    spare_ms = budget.remaining_ms - budget.needed_ms
    if spare_ms > 0:
        width = end - at
        yield _box(at, top, width, "#d7d7d7")
        yield _text(at + 6, top + 21, f"{spare_ms} ms to spare", size=11)
    yield (
        f'<line x1="{end:.1f}" x2="{end:.1f}" y1="{top - 8}" y2="{top + BAR + 8}" '
        'stroke="#e15759" stroke-width="3"/>'
    )
    yield _text(end + 6 if spare_ms < 0 else end - 52, top - 12, "deadline", size=11)


def _box(left: float, top: float, width: float, fill: str) -> str:
    return f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{fill}"/>'


def fence() -> str:
    """A commit log as two attempts write it, the older one of which wakes up late."""
    log = CommitLog(MemoryStore(), job_id="job", pause=lambda _: None)
    log.claim(attempt_id="a", now_unix_ms=1)
    log.publish(_commit(100, epoch=1, attempt_id="a"))
    log.claim(attempt_id="b", now_unix_ms=2)
    refused = ""
    try:
        log.publish(_commit(150, epoch=1, attempt_id="a"))
    except FencedError as error:
        refused = str(error)
    log.publish(_commit(101, epoch=2, attempt_id="b"))
    body: list[str] = []
    for place, (number, slot) in enumerate(log.slots()):
        left = 20 + place * 205
        fill = "#4e79a7" if slot.epoch == 1 else "#59a14f"
        what = f"claim of epoch {slot.epoch}"
        if isinstance(slot, Commit):
            what = f"commit: step {slot.step}"
        body.append(f'<rect x="{left}" y="60" width="175" height="52" rx="6" fill="{fill}"/>')
        body.append(_text(left + 10, 82, f"slot {number:08d}", colour="#fff", size=11))
        body.append(_text(left + 10, 100, what, colour="#fff", weight=600))
        if place:
            ends = f'x1="{left - 28}" x2="{left - 3}" y1="86" y2="86"'
            body.append(f'<line {ends} stroke="#888" stroke-width="2"/>')
    body.append(_text(20, 150, "Attempt 1 wakes up and wants to commit step 150:", size=12))
    body.append(_text(20, 170, refused, size=12, colour="#c0392b", weight=600))
    return _svg(
        190, "Each slot is created only if it is absent; a claim fences what came before", body
    )


def _commit(step: int, *, epoch: int, attempt_id: str) -> Commit:
    return Commit(
        job_id="job",
        epoch=epoch,
        attempt_id=attempt_id,
        generation_id=f"e{epoch:06d}-s{step:012d}-p",
        manifest_digest=f"sha256:{step}",
        step=step,
        world_size=2,
        total_bytes=10,
        file_count=1,
        committed_unix_ms=step,
    )


def proofs() -> str:
    """How many planted faults the model checker has to find in each model."""
    runs = tomllib.loads(RUNS.read_text(encoding="utf-8"))
    counts = Counter(str(one["module"]) for one in runs["mutation"])
    checks = Counter(str(one["module"]) for one in runs["check"])
    scale = (WIDTH - LEFT - 300) / max(counts.values())
    body: list[str] = []
    for row, (name, count) in enumerate(counts.most_common()):
        top = 44 + row * 34
        body.append(_text(10, top + 16, name, weight=600))
        body.append(
            f'<rect x="{LEFT}" y="{top}" width="{count * scale:.1f}" height="22" fill="#4e79a7"/>'
        )
        text = f"{count} mutations, {checks[name]} exhaustive configuration(s)"
        body.append(_text(LEFT + count * scale + 8, top + 16, text, size=12))
    title = "Every rule of a model is broken on purpose, and TLC must find exactly that"
    return _svg(60 + 34 * len(counts), title, body)


def _text(
    x: float, y: float, text: str, *, size: int = 13, weight: int = 400, colour: str = "#333"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}">'
        f"{escape(text)}</text>"
    )


def _svg(height: int, title: str, body: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" role="img">'
    )
    white = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    heading = _text(10, 20, title, size=14, weight=600)
    lines = [head, f"<title>{escape(title)}</title>", white, heading, *body, "</svg>"]
    return "\n".join(lines) + "\n"


PICTURES = {"rule": rule, "commit-log": fence, "proofs": proofs}
"""By their names in docs/images."""
