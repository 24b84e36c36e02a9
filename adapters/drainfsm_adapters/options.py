"""The options in ``[adapters.NAME]``: typed, and a typo is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from drainfsm.errors import ConfigError

POLL_S_MIN, POLL_S_MAX = 1.0, 5.0


class PollOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every cloud."""

    poll_s: float = 2.0
    timeout_s: float = 2.0
    """For every call, from the connection to the last byte."""

    unknown_s: float = 30.0
    """A signal that has been silent for this long is reported."""


Kind = TypeVar("Kind", bound=PollOptions)


def load_options(kind: type[Kind], options: Mapping[str, str], *, source: str) -> Kind:
    """The strings of the table as ``kind``.

    Raises:
        ConfigError: an unknown key, or an invalid value; names it.
    """
    try:
        loaded = msgspec.convert(dict(options), kind, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(sorted(kind.__struct_fields__))
        raise ConfigError(f"[adapters.{source}] {error} (known keys: {known})") from error
    if not POLL_S_MIN <= loaded.poll_s <= POLL_S_MAX:
        raise ConfigError(
            f"[adapters.{source}] poll_s = {loaded.poll_s:g}: take 1 to 5 seconds, for a notice "
            "may leave only 30"
        )
    for name in ("timeout_s", "unknown_s"):
        if not getattr(loaded, name) > 0:
            raise ConfigError(f"[adapters.{source}] {name}: must be above 0")
    return loaded


def chosen(text: str, known: tuple[str, ...], *, option: str) -> tuple[str, ...]:
    """A comma-separated choice of ``known`` names; empty: all of them.

    Raises:
        ConfigError: another name is among them.
    """
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}: {name!r} is not one of {', '.join(known)}")
    return names or known
