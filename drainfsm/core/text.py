"""Foreign text (causes, ids, details, messages of stores) made safe to print; durations."""

from __future__ import annotations

CHARS_MAX = 400
"""Limit of one piece of foreign text in a line for people. The log and ``--json`` have all of
it."""


def printable(text: str, *, chars_max: int = CHARS_MAX) -> str:
    """One line, whatever ``text`` holds: what moves a cursor, colours a terminal, ends a line or
    turns the direction of writing is shown as an escape sequence; what is long is cut."""
    cut = text if len(text) <= chars_max else text[:chars_max]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else _escaped(char) for char in cut)
    return cut if len(text) <= chars_max else f"{cut}… ({len(text)} characters)"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()


def span(value_ms: int) -> str:
    """``42.0 s``, ``3.5 min`` or ``7.1 h``."""
    if value_ms < 120_000:
        return f"{value_ms / 1_000:.1f} s"
    if value_ms < 7_200_000:
        return f"{value_ms / 60_000:.1f} min"
    return f"{value_ms / 3_600_000:.1f} h"
