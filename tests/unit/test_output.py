"""What is printed: escaped, cut, bounded, by a thread that holds up nobody."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from drainfsm.core.text import printable
from drainfsm.runtime.output import LINES_MAX, JsonFormat, Printer, TextFormat

FORGED = "spot\n\x1b[2Jdrainfsm: all is well\u202e"


def record(text: str, name: str = "drainfsm.agent") -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "", 0, text, None, None)


def test_text_of_others_is_one_line_without_escapes() -> None:
    assert printable(FORGED) == r"spot\n\x1b[2Jdrainfsm: all is well\u202e"
    assert printable("Größe 10 µs") == "Größe 10 µs"
    assert printable("\udc80") == r"\udc80"
    assert printable("x" * 100_000, chars_max=3) == "xxx… (100000 characters)"


def test_a_message_of_several_lines_forges_no_other() -> None:
    told = TextFormat("drainfsm").format(record(FORGED))
    assert told.split("\n") == ["drainfsm: spot", "  \\x1b[2Jdrainfsm: all is well\\u202e"]


def test_a_logger_of_others_is_named() -> None:
    assert TextFormat("drainfsm").format(record("late", "nats")) == "drainfsm: nats: late"


def test_json_has_what_a_collector_asks_for() -> None:
    line = json.loads(JsonFormat({"job": "llm"}).format(record(FORGED)))
    assert (line["level"], line["logger"], line["job"]) == ("warning", "drainfsm.agent", "llm")
    assert line["time"].endswith("Z")
    assert "\x1b" not in line["message"]


def test_what_nobody_reads_is_dropped_and_counted() -> None:
    ours, theirs = os.pipe()
    printer = Printer(theirs)
    for number in range(3 * LINES_MAX):
        printer.write(f"{number:0200}")
    told = b""
    while b"were not printed" not in told:
        told += os.read(ours, 1 << 20)
    printer.close(timeout_s=10.0)
    lines = told.decode().splitlines()
    numbers = [int(line) for line in lines if line.isdecimal()]
    assert numbers == list(range(len(numbers)))
    missed = [int(line.split()[1]) for line in lines if "were not printed" in line]
    assert 0 < sum(missed) <= 3 * LINES_MAX - LINES_MAX
    os.close(ours)
    os.close(theirs)


def test_a_descriptor_that_is_closed_costs_nothing() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    printer = Printer(theirs)
    os.close(theirs)
    printer.write("said")
    printer.close(timeout_s=10.0)


SCRIPT = """
import logging, sys
from drainfsm.runtime.output import print_unheard
if sys.argv[1] == "configured":
    logging.basicConfig(format="%(name)s says %(message)s")
print_unheard()
logging.getLogger("drainfsm.rank").warning("rank 3: gone")
logging.getLogger("drainfsm.rank").info("not that")
"""


@pytest.mark.parametrize(
    ("how", "told"),
    [("plain", "drainfsm: rank 3: gone\n"), ("configured", "drainfsm.rank says rank 3: gone\n")],
)
def test_a_rank_prints_warnings_unless_the_script_has_set_up_logging(how: str, told: str) -> None:
    command = (sys.executable, "-c", SCRIPT, how)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == told
