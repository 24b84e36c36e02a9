"""What a check found, and the input that all checks get."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from drainfsm.core.budget import Allowances
from drainfsm.log.server import NatsServer


class Severity(enum.StrEnum):
    RIGHT = "right"
    NOTE = "note"
    """It could not be tried, or is worth knowing."""

    WARNING = "warning"
    """A drain works, and something around it does not."""

    ERROR = "error"
    """A drain would save nothing, or the job would not start."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    check: str
    severity: Severity
    seen: str
    why: str = ""
    fix: str = ""
    """The command, or the line of a configuration, that fixes it. Only its reader runs it."""


def right(check: str, seen: str) -> Finding:
    return Finding(check=check, severity=Severity.RIGHT, seen=seen)


def note(check: str, seen: str, *, fix: str = "") -> Finding:
    return Finding(check=check, severity=Severity.NOTE, seen=seen, fix=fix)


def warning(check: str, seen: str, *, why: str, fix: str) -> Finding:
    return Finding(check=check, severity=Severity.WARNING, seen=seen, why=why, fix=fix)


def error(check: str, seen: str, *, why: str, fix: str) -> Finding:
    return Finding(check=check, severity=Severity.ERROR, seen=seen, why=why, fix=fix)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The job as it would be started here."""

    job: str
    command: tuple[str, ...]
    """Empty: it was not given."""

    store_url: str
    """Empty: none was named."""

    state_dir: Path
    nats: NatsServer | None
    sources: tuple[str, ...]
    node_count: int
    node_rank: int
    coordinator: str
    token_given: bool
    grace_ms: int
    allowances: Allowances
    save_bytes: int
    """Of one checkpoint, all ranks together; 0: not known."""

    needed_ms: int
    """The window that a save needs; 0: not known."""

    adapters: dict[str, dict[str, str]]


EXIT_CODES = {Severity.ERROR: 1, Severity.WARNING: 3}
"""By the worst finding; 0: nothing worse than a note."""


def exit_code(findings: list[Finding]) -> int:
    found = {finding.severity for finding in findings}
    return next((code for severity, code in EXIT_CODES.items() if severity in found), 0)
