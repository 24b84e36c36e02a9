"""Names of a drain for tracing systems, the same wherever they are computed."""

from __future__ import annotations

import hashlib


def trace_id(drain_id: str) -> str:
    """32 hex digits. Drain ids differ over all jobs and attempts."""
    return hashlib.sha256(f"drainfsm {drain_id}".encode()).hexdigest()[:32]
