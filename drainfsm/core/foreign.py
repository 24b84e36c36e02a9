"""Bytes that somebody else wrote: read, or refused with the error that their reader raises.

Nobody else turns bytes into values (``tests/architecture`` sees to it): what a decoder raises for
odd bytes is known here alone.
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
    """The value of that type in ``data``; else raises what ``refuse`` makes of the reason."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise refuse(str(error)) from error
