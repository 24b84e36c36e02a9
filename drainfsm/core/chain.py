"""The chain of an attempt's records: each names the one before it, so that none can be changed,
removed, put in or moved without a break that everybody can see."""

from __future__ import annotations

import hashlib

import msgspec


class LogHead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far a log had come, kept where somebody else guards it."""

    count: int
    """Records; at least one."""

    digest: str
    """Of the last of them: SHA-256, in hex, of its line as stored."""


def line_digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
