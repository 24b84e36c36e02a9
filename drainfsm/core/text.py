"""Text of others (causes, ids, details, messages of stores) made fit to be printed."""

from __future__ import annotations

CHARS_MAX = 400
"""Of one piece of foreign text in a line for people. The log and ``--json`` have all of it."""


def printable(text: str, *, chars_max: int = CHARS_MAX) -> str:
    """One line, whatever ``text`` holds: what moves a cursor, colours a terminal, ends a line or
    turns the direction of writing is shown as an escape sequence; what is long is cut."""
    cut = text if len(text) <= chars_max else text[:chars_max]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else _escaped(char) for char in cut)
    return cut if len(text) <= chars_max else f"{cut}… ({len(text)} characters)"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()
