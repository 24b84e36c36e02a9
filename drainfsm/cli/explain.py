"""``drainfsm explain``: why a drain ended as it did, with the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from drainfsm.cli.logs import (
    LINE_CHARS_MAX,
    WHERE,
    add_log_options,
    read_history,
    replays,
    report_damage,
)
from drainfsm.cli.options import Parser
from drainfsm.core.explain import explain
from drainfsm.core.text import printable

USAGE = """explain (--job NAME | --file PATH) [--epoch N] [--nats URL]"""


def parser() -> Parser:
    about = "Say why every drain ended as it did. Each decision is recomputed from its own numbers."
    made = Parser("explain", about, usage=USAGE, epilog=WHERE)
    add_log_options(made)
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    history = read_history(arguments)
    for replay in replays(arguments, history):
        final = replay.final
        print(f"job {final.job_id}, attempt {final.epoch}" + _odd(final.lost))
        for line in explain(replay.counted):
            print(f"  {printable(line, chars_max=LINE_CHARS_MAX)}")
    return report_damage(history)


def _odd(lost: str) -> str:
    return f" (lost: {printable(lost)})" if lost else ""
