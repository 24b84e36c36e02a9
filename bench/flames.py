"""Pictures of what blocks training during an asynchronous save, by sampling.

    python -m bench.flames record SAMPLES.json TITLE     two ranks; the first one is sampled
    python -m bench.flames draw PICTURE.svg SAMPLES.json …

Several recordings are drawn below each other, on one scale of time. The main thread is sampled
until it waits for the save's own thread, and then that one.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any

from bench.ranks import Ranks

PARAMETERS = 2_000
SAVES = 8
INTERVAL_S = 0.001
DEPTH = 9
WIDTH_PX = 1_000
ROW_PX = 18
COLORS = {"drainfsm": "#7aa6c2", "torch": "#e0a458", "": "#c8c8c8"}


def record(path: Path, title: str) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Ranks(
            "bench.flames_rank",
            world_size=2,
            directory=Path(directory),
            parameters=PARAMETERS,
            samples=str(path.absolute()),
            title=title,
        ) as ranks,
    ):
        ranks.ask("warm up")
        for _ in range(SAVES):
            ranks.ask("save")
        ranks.ask("write")


class Sampler:
    """Counts the stacks of the thread that made it, or of the one that it waits for."""

    def __init__(self) -> None:
        self.stacks: dict[tuple[str, ...], int] = {}
        self._thread = threading.get_ident()
        self._over = threading.Event()

    def __enter__(self) -> Sampler:
        self._over.clear()
        self._sampling = threading.Thread(target=self._sample)
        self._sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sampling.join()

    def _sample(self) -> None:
        while not self._over.wait(INTERVAL_S):
            stack = self._stack()
            if stack:
                self.stacks[stack] = self.stacks.get(stack, 0) + 1

    def _stack(self) -> tuple[str, ...]:
        frames = sys._current_frames()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        own = list(_named(frames.get(self._thread)))
        if "drainfsm: wait_staged" in own:
            saving = (i for i, name in names.items() if name.startswith("drainfsm-save"))
            own = [name for one in saving for name in _named(frames.get(one or 0))]
            own = own[own.index("drainfsm: _run") :] if "drainfsm: _run" in own else []
            return tuple(["drainfsm: (its thread)", *own][:DEPTH])
        if "drainfsm: step_done" in own:
            return tuple(own[own.index("drainfsm: step_done") :][:DEPTH])
        return ()


def _named(frame: FrameType | None) -> Iterator[str]:
    stack: list[FrameType] = []
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    for one in reversed(stack):
        package = one.f_globals.get("__name__", "").partition(".")[0]
        yield f"{package}: {one.f_code.co_name}"


def draw(path: Path, recordings: list[dict[str, Any]]) -> None:
    longest_ms = max(recording["blocked_ms"] for recording in recordings)
    height = len(recordings) * (DEPTH + 3) * ROW_PX
    shape = f'viewBox="0 0 {WIDTH_PX} {height}" font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {shape}>',
        f'<rect width="{WIDTH_PX}" height="{height}" fill="white"/>',
    ]
    for number, recording in enumerate(recordings):
        top = number * (DEPTH + 3) * ROW_PX
        title = f"{recording['title']}: blocked for {recording['blocked_ms']:.0f} ms"
        parts.append(f'<text x="4" y="{top + 20}" font-size="14">{escape(title)}</text>')
        width = WIDTH_PX * recording["blocked_ms"] / longest_ms
        stacks = [(tuple(stack), count) for stack, count in recording["stacks"]]
        total = sum(count for _, count in stacks)
        ms = recording["blocked_ms"] / total
        parts += _boxes(sorted(stacks), x=0.0, y=top + 30, px=width / total, ms=ms)
    path.write_text("\n".join([*parts, "</svg>\n"]))


def _boxes(
    stacks: list[tuple[tuple[str, ...], int]], *, x: float, y: float, px: float, ms: float
) -> Iterator[str]:
    """One row for each depth; a box is as wide as the time in it."""
    groups: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for stack, count in stacks:
        if stack:
            groups.setdefault(stack[0], []).append((stack[1:], count))
    for name, inner in groups.items():
        count = sum(count for _, count in inner)
        width = count * px
        if width >= 1:
            package, _, function = name.partition(": ")
            color = COLORS.get(package, COLORS[""])
            label = escape(function) if width > 6.5 * len(function) else ""
            yield (
                f"<g><title>{escape(name)}: {count * ms:.1f} ms</title>"
                f'<rect x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{ROW_PX - 1}" '
                f'fill="{color}" stroke="white"/>'
                f'<text x="{x + 3:.1f}" y="{y + 13:.0f}">{label}</text></g>'
            )
            yield from _boxes(inner, x=x, y=y + ROW_PX, px=px, ms=ms)
        x += width


def main() -> None:
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]), sys.argv[3])
    else:
        draw(Path(sys.argv[2]), [json.loads(Path(path).read_text()) for path in sys.argv[3:]])


if __name__ == "__main__":
    main()
