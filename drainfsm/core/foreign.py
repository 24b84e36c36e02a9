"""Reads bytes that somebody else wrote, or refuses them with an error of the caller's.

What decoders raise for odd bytes is known in this one place (``tests/architecture`` checks it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")

UNREADABLE = (ValueError, msgspec.MsgspecError, RecursionError, OverflowError)
"""Whatever a decoder raises: those of json, tomllib and Unicode are ``ValueError``, those of
msgspec only in its newer versions; thousands of nested brackets are a ``RecursionError``; a date
may lie outside of any calendar."""


def read_json(data: bytes | str, kind: type[T], refuse: Callable[[str], Exception]) -> T:
    """``data`` as a value of that type; raises ``refuse(reason)`` if it is not one."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise refuse(str(error)) from error
