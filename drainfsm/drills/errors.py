"""What goes wrong with a drill itself."""

from __future__ import annotations

from drainfsm.errors import DrainfsmError


class DrillError(DrainfsmError):
    """The job did not get to where the scenario begins, or does not end."""
