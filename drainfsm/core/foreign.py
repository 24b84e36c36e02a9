"""Reads bytes that somebody else wrote, or refuses them with an error of the caller's.

What decoders raise for odd bytes is known in this one place (``tests/architecture`` checks it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")

UNREADABLE = (ValueError, RecursionError, OverflowError)
"""Whatever a decoder raises: those of msgspec, json, tomllib and Unicode are ``ValueError``;
thousands of nested brackets are a ``RecursionError``; a date may lie outside of any calendar."""


def read_json(data: bytes | str, kind: type[T], refuse: Callable[[str], Exception]) -> T:
    """``data`` as a value of that type; raises ``refuse(reason)`` if it is not one."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise refuse(str(error)) from error
