"""One script, and what is proposed for it."""

from __future__ import annotations

from typing import NamedTuple

from drainfsm.errors import ScriptRefusedError
from drainfsm.init.frameworks import change_framework, framework_of, uses_drainfsm
from drainfsm.init.loops import training_loop
from drainfsm.init.plain_loop import Change, change_plain_loop
from drainfsm.init.script import Script


class Proposal(NamedTuple):
    """``change`` or ``refused``; neither: the script has what it needs."""

    change: Change | None
    refused: str = ""
    """Why no lines are proposed."""


def propose(script: Script) -> Proposal:
    """What would have the script drain."""
    if uses_drainfsm(script):
        return Proposal(change=None)
    try:
        if owned := framework_of(script):
            return Proposal(change=change_framework(script, *owned))
        loop = training_loop(script)
        if loop is None:
            return Proposal(change=None, refused=f"{script.name} has no optimizer that steps")
        return Proposal(change=change_plain_loop(script, loop))
    except ScriptRefusedError as reason:
        return Proposal(change=None, refused=str(reason))
