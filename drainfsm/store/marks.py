"""Proof that slots were written: one small object for each, so that a log that lost its end is
noticed.

``marks/00000042-<hex>``: slot 42 was written, and this is its digest. Slots never change, so a mark
is true for ever, however late it is written; a slot whose writer died at once has none.
"""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

from drainfsm.errors import SlotTakenError, StoreUnreachableError
from drainfsm.store.base import ObjectStore

MARKS = "marks/"

_NAME = re.compile(r"(\d{8})-([0-9a-f]{64})")


class Mark(NamedTuple):
    slot: int
    digest: str
    """``sha256:<hex>``."""


def read_marks(store: ObjectStore, *, from_slot: int) -> list[Mark]:
    """Of that slot and later ones, in their order."""
    found = map(_NAME.fullmatch, store.names(MARKS, after=f"{from_slot:08d}"))
    return sorted(Mark(int(match[1]), f"sha256:{match[2]}") for match in found if match)


def write_mark(store: ObjectStore, mark: Mark) -> None:
    """It only records what is true already."""
    name = f"{MARKS}{mark.slot:08d}-{mark.digest.removeprefix('sha256:')}"
    with contextlib.suppress(SlotTakenError, StoreUnreachableError):
        store.put_if_absent(name, b"")
