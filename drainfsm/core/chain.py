"""The chain of an attempt's records: each names the one before it, so that none can be changed,
removed, inserted or moved without a visible break."""

from __future__ import annotations

import hashlib

import msgspec


class LogHead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How long a log was, kept in a place of its own."""

    count: int
    """Records; at least one."""

    digest: str
    """Of the last of them: SHA-256, in hex, of its line as stored."""


def line_digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
