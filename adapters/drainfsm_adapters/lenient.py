"""Reads what platforms write: checks what is needed, and ignores the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm_adapters.metadata import NoAnswerError

IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NUMBER = re.compile(r"[0-9]{1,15}")
NOTHING = ("", "null", "none")


def says_nothing(text: str) -> bool:
    """How some services write "none" where others answer 404."""
    return text.strip().strip('"').lower() in NOTHING


def whole_number(value: object) -> int | None:
    """``9`` and ``"9"``; None for anything else, digits of other scripts and endless ones too."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        return int(value)
    return value if isinstance(value, int) else None


def event_of(raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """Raises: ValueError: it is not a JSON object."""
    return read_json(bytes(raw), dict[str, Any], ValueError)


def needed(event: Mapping[str, Any], name: str) -> str:
    """Raises: ValueError: the field is missing, empty, or no text."""
    value = event.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is {value!r}")
    return value


def optional(event: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that is text; empty: none is."""
    values = (event.get(name) for name in names)
    return next((value for value in values if isinstance(value, str) and value), "")


def identity_of(text: str, *, what: str) -> str:
    """The machine's name for itself, part of every notice's identity.

    Raises:
        NoAnswerError: it is a page or an error message, not a name.
    """
    name = text.strip().strip("\"'")
    if not IDENTITY.fullmatch(name):
        raise NoAnswerError(f"{what}: {text[:40]!r} is not a name")
    return name
