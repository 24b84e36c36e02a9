"""The text of a new drainfsm.toml."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from drainfsm.init.platforms import PlatformSign

JOB_CHARS_MAX = 64
SAVE_EVERY_S, SAVE_EVERY_STEPS = 600, 1000
"""A loss without a notice costs half of it on average; `drainfsm plan` works out a better one. A
framework that writes its own checkpoints saves by steps."""


def job_name(text: str) -> str:
    """What ``--job`` takes of a directory's name; empty: nothing of it."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:JOB_CHARS_MAX]


def configuration(
    *, job: str, store: str, evidence: Sequence[PlatformSign], by_steps: bool = False
) -> str:
    """Only keys that ``drainfsm run`` takes; everything else has its default. ``by_steps``: the
    job's checkpoints are a framework's own."""
    often = f"every_steps = {SAVE_EVERY_STEPS}" if by_steps else f"every_s = {SAVE_EVERY_S}"
    lines = [
        "# Read by every command of drainfsm that is started here. `drainfsm run --help` has all",
        "# keys; a variable (DRAINFSM_STORE) and an option (--store) win over them.",
        f"job = {_text(job)}",
        f"store = {_text(store)}  # every node must see it: a shared directory, s3://, gs://, az://",
        *_create_store(store),
        *_sources(evidence),
        "",
        "[checkpoint]",
        f"{often}  # `drainfsm plan` says how often is worth it",
    ]
    return "\n".join(lines) + "\n"


def _create_store(store: str) -> list[str]:
    return [] if "://" in store else ["create_store = true"]


def _sources(evidence: Sequence[PlatformSign]) -> list[str]:
    lines = []
    here = [one for one in evidence if one.here]
    if here:
        because = _comment("; ".join(one.because for one in here))
        lines.append(f"source = [{', '.join(_text(one.source) for one in here)}]  # {because}")
    for one in evidence:
        if not one.here:
            lines.append(f"# there: drainfsm run --source {one.source} ({_comment(one.because)})")
    return lines


def _text(value: str) -> str:
    """A basic string of TOML takes the escapes of JSON; and DEL, which JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
