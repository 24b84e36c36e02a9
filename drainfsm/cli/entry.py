"""The first act of the command: a signal must not end an agent that is still being imported."""

from __future__ import annotations

import sys

from drainfsm.runtime import early_signals

HEARS_SIGNALS = ("run", "supervise")


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in HEARS_SIGNALS:
        early_signals.record()
    from drainfsm.cli.main import main as dispatch

    return dispatch()
