"""Generated mutants that change nothing anybody can see, by file and change, with the reason."""

from __future__ import annotations

EQUIVALENTS: dict[tuple[str, str], str] = {}
