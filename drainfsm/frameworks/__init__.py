"""One small module for each training framework: the lines that put drainfsm into its loop.

Nothing is imported here that a framework brings. ``docs/frameworks.md`` compares them.
"""

from __future__ import annotations

__all__ = ["Drained"]


class Drained(SystemExit):
    """A drain has ended the training of a framework that owns the loop, after its save.

    A ``SystemExit`` with code 0: nobody has to catch it, and what follows training in the script
    (a last evaluation, an export) is left out. The agent makes 75 of it, as of every drain.
    """

    def __init__(self, step: int) -> None:
        super().__init__(0)
        self.step = step
        """The last completed step; the replacement goes on after it."""
