"""Slots of a commit log as they are stored: their names, and what ties each to its place.

A slot names its place, the digest of the slot before it and the store, and is sealed with a digest
of its own. So a slot that was lost, copied, reordered or changed is noticed when it or its
successor is read. Slots of format version 1 have no such link: they can only stand before all that
do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from drainfsm.core.codec import decode_object, encode_object
from drainfsm.core.manifest import (
    FORMAT_VERSION,
    SLOT_FORMAT_VERSION,
    Claim,
    Commit,
    Slot,
    SlotLink,
)
from drainfsm.errors import CommitLogError, ManifestMismatchError

PREFIX = "commits/"
NUMBER_MAX = 99_999_999
"""Eight digits, so that names sort like numbers."""

_NAME = re.compile(r"(\d{8})\.json")


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that was read, or is to be written."""

    number: int
    slot: Slot
    """As it was given to be stored, without its link."""

    link: SlotLink | None
    digest: str
    """``sha256:<hex>`` of its bytes."""

    @property
    def newest_commit(self) -> int | None:
        """Place of the newest commit up to here; 0: there is none; None: the slot does not say."""
        if isinstance(self.slot, Commit):
            return self.number
        return None if self.link is None else self.link.newest_commit


def slot_name(number: int) -> str:
    if not 1 <= number <= NUMBER_MAX:
        raise CommitLogError(f"the commit log is full: slot {number}")
    return f"{number:08d}.json"


def slot_numbers(names: Iterable[str]) -> list[int]:
    """The slots among the names, ascending; other files (``.nfs…``, say) are not slots."""
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def missing_slot(numbers: Sequence[int], *, after: int) -> int | None:
    """The first slot that is not there though a later one is."""
    for expected, number in enumerate(numbers, start=after + 1):
        if number != expected:
            return expected
    return None


def linked(slot: Slot, *, behind: Placed | None, newest_commit: int, store_id: str) -> bytes:
    """The bytes to store in the place behind that slot (None: in the first)."""
    link = SlotLink(
        slot=1 if behind is None else behind.number + 1,
        before="" if behind is None else behind.digest,
        newest_commit=newest_commit,
        store_id=store_id,
    )
    unsealed = replace(slot, format_version=SLOT_FORMAT_VERSION, link=link)
    seal = hashlib.sha256(encode_object(unsealed)).hexdigest()
    return encode_object(replace(unsealed, link=replace(link, seal=seal)))


def open_slot(data: bytes, number: int) -> Placed:
    """What is stored in that place.

    Raises:
        FormatUnknownError: its format version is not known here.
        ManifestMismatchError: garbled, or written for another place.
    """
    what = f"slot {PREFIX}{slot_name(number)}"
    slot = cast(
        Slot,
        decode_object(data, cast(Any, Slot), what=what, newest_version=SLOT_FORMAT_VERSION),
    )
    link = slot.link
    if (link is not None) != (slot.format_version == SLOT_FORMAT_VERSION):
        raise ManifestMismatchError(f"{what} is garbled: its version and its link disagree")
    if link is not None:
        unsealed = data.replace(link.seal.encode(), b"", 1) if link.seal else data
        if hashlib.sha256(unsealed).hexdigest() != link.seal:
            raise ManifestMismatchError(f"{what} is garbled: its seal does not match its content")
        if link.slot != number:
            raise ManifestMismatchError(f"{what} was written for place {link.slot}")
    bare = replace(slot, format_version=FORMAT_VERSION, link=None)
    return Placed(number=number, slot=bare, link=link, digest=digest_of(data))


def check_follows(placed: Placed, behind: Placed | None) -> None:
    """Check that ``placed`` was written after that slot, and may follow it.

    Raises:
        CommitLogError: it was not, or the epochs do not follow.
    """
    what, slot, link = f"slot {PREFIX}{slot_name(placed.number)}", placed.slot, placed.link
    if link is None and behind is not None and behind.link is not None:
        raise CommitLogError(f"{what} has no link, though the slots before it have")
    if link is not None and link.before != ("" if behind is None else behind.digest):
        raise CommitLogError(
            f"{what} was not written after the slot that is before it now: one of them, or what "
            "was between them, is not what it was"
        )
    epoch = 0 if behind is None else behind.slot.epoch
    expected = epoch + 1 if isinstance(slot, Claim) else epoch
    if slot.epoch != expected:
        raise CommitLogError(f"{what} has epoch {slot.epoch}, not {expected}")
    if isinstance(slot, Commit) and (behind is None or slot.attempt_id != behind.slot.attempt_id):
        raise CommitLogError(f"{what} is of an attempt that did not claim its epoch")


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
