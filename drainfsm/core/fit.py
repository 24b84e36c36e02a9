"""How long a save takes, as a function of its bytes: a line above every save of a store.

Saves of other sizes and of other numbers of ranks say something about a new one, so that the first
drain after such a change need not assume a bandwidth. Only this is taken for granted: twice the
bytes take at most twice as long, and more bytes take no less time. The line is the lowest such one
that no save lies above. It bends where it has to; beyond the largest save it is in proportion.

A store takes so many bytes a second, and so does a rank. Two lines are drawn, one over the bytes of
a save and one over the bytes of each rank, and the later of the two answers counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from drainfsm.core.words import Word

GIB = 1 << 30


class FitOver(Word):
    """What a line is drawn over."""

    BYTES = "bytes"
    """Of the whole save: the store limits."""

    BYTES_PER_RANK = "bytes_per_rank"
    """Fewer ranks write more each: a rank limits."""


class Fit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The piece of the line that an estimate was read from."""

    over: FitOver
    sample_count: int
    bytes_min: int
    bytes_max: int
    """Of the saves that it was fitted to."""

    bytes_asked: int
    fixed_ms: int
    ms_per_gib: int
    """``value_ms`` is about ``fixed_ms`` and this for every GiB."""

    value_ms: int


class _Point(NamedTuple):
    size_bytes: int
    took_ms: int


class SizedSave(NamedTuple):
    """A save that was, or one that is asked about."""

    world_size: int
    save_bytes: int
    took_ms: int = 0


def fitted(saves: Sequence[SizedSave], asked: SizedSave) -> Fit | None:
    """The estimate for ``asked``, never below a save that was no larger. None: no save tells."""
    over_bytes = _read([_Point(s.save_bytes, s.took_ms) for s in saves], asked.save_bytes)
    if over_bytes is None or all(save.world_size == asked.world_size for save in saves):
        return over_bytes
    over_ranks = _read([_Point(_per_rank(s), s.took_ms) for s in saves], _per_rank(asked))
    if over_ranks is None or over_ranks.value_ms <= over_bytes.value_ms:
        return over_bytes
    return msgspec.structs.replace(over_ranks, over=FitOver.BYTES_PER_RANK)


def _per_rank(save: SizedSave) -> int:
    return _ceil_div(save.save_bytes, max(1, save.world_size))


def _read(points: Iterable[_Point], asked_bytes: int) -> Fit | None:
    known = sorted(point for point in points if point.size_bytes > 0)
    if not known:
        return None
    left, right = _piece(_line(known), asked_bytes)
    width, rise = right.size_bytes - left.size_bytes, right.took_ms - left.took_ms
    return Fit(
        over=FitOver.BYTES,
        sample_count=len(known),
        bytes_min=known[0].size_bytes,
        bytes_max=known[-1].size_bytes,
        bytes_asked=asked_bytes,
        fixed_ms=left.took_ms - rise * left.size_bytes // width,
        ms_per_gib=_ceil_div(rise * GIB, width),
        value_ms=left.took_ms + _ceil_div(rise * (asked_bytes - left.size_bytes), width),
    )


def _piece(line: Sequence[_Point], asked_bytes: int) -> tuple[_Point, _Point]:
    """Beyond the largest save: the whole line, in proportion."""
    for left, right in pairwise(line):
        if asked_bytes <= right.size_bytes:
            return left, right
    return line[0], line[-1]


def _line(points: Sequence[_Point]) -> list[_Point]:
    """From nothing in no time to the largest save: the corners of the upper hull, which never
    falls. ``points`` are sorted."""
    corners = [_Point(0, 0)]
    highest = max(point.took_ms for point in points)
    for point in (*points, _Point(points[-1].size_bytes, highest)):
        while len(corners) > 1 and _at_or_above(point, corners[-2], corners[-1]):
            corners.pop()
        corners.append(point)
    return corners


def _at_or_above(point: _Point, first: _Point, second: _Point) -> bool:
    """The point lies on or above the line through the other two."""
    run, rise = second.size_bytes - first.size_bytes, second.took_ms - first.took_ms
    return (point.took_ms - first.took_ms) * run >= rise * (point.size_bytes - first.size_bytes)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
