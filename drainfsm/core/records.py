"""The record around events: one decision, one record, one message, one fsync."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from drainfsm.core.events import Event, UnknownFact

if TYPE_CHECKING:
    Content: TypeAlias = Event | UnknownFact
else:
    Content = Event
    """What ``msgspec`` decodes by itself; the codec makes an ``UnknownFact`` by hand."""

SCHEMA_VERSION = 1
"""Rises when a reader of the old version would misread the new one. Additions do not raise it."""


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All events of one decision, with the circumstances of their writing."""

    v: int = SCHEMA_VERSION
    id: str
    """Unique, chosen by the writer: a repeated record is recognised by it for ever."""

    job_id: str
    epoch: int
    follows: int
    """How many records of this attempt's log the writer had read, none of them skipped."""

    at_unix_ms: int
    events: tuple[Content, ...]
    before: str | UnsetType = UNSET
    """``core.chain.line_digest`` the record before; empty: this is the first. Unset: the log is not
    chained, as those of 0.1 are not."""

    signed: str | UnsetType = UNSET
    """Public nkey of who signed the rest of the line, a dot, the signature (``log.signing``). With
    ``before`` it stands for all records up to here, so one record of each append has it."""


def subject_of(*, job_id: str, epoch: int) -> str:
    """The NATS subject of one attempt's log."""
    return f"drainfsm.v1.{job_id}.{epoch}"


def subjects_of(job_id: str) -> str:
    """The subjects of all attempts of a job; ``*`` for all jobs."""
    return f"drainfsm.v1.{job_id}.*"
