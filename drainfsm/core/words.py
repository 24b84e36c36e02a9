"""Closed sets of words that stand in the log, in the store and in settings.

Inside, each is a type. A newer version may know more words: one that is not known here is kept as
it is, byte for byte, so that no record becomes unreadable by it.
"""

from __future__ import annotations

import enum
from typing import Any


class Word(enum.StrEnum):
    """Base of all closed sets. ``Set("word")`` never fails: a word that this version does not
    know becomes a member of its own, equal to others of the same word, and is not listed."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_ = member._value_ = value
        return member

    @property
    def known(self) -> bool:
        """Whether this version knows the word."""
        return self._name_ in type(self).__members__


class CordonOutcome(Word):
    """How asking the platform to schedule nothing new on the leaving nodes ended."""

    SUCCESS = "success"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    NOT_CONFIGURED = "not_configured"


class Accumulation(Word):
    """What happens to a partial gradient accumulation at the stop step."""

    FINISH = "finish"
    DISCARD = "discard"


class Checksum(Word):
    """The algorithm by which files are hashed."""

    XXH3_128 = "xxh3_128"
    SHA256 = "sha256"
    SHA256_TREE = "sha256_tree"


class Verification(Word):
    """How thoroughly a generation was checked."""

    SIZES = "sizes"
    """Every file is there, with its size."""

    CHECKSUMS = "checksums"
    """Every byte was read and hashed."""

    LOADED = "loaded"
    """And every tensor loaded."""

    RESTORED = "restored"
    """The job's own command restored it on all of its ranks, checking every byte."""


RESTORE_CHECKS = (Verification.SIZES, Verification.CHECKSUMS)
"""What a restore can be set to."""


class OnRefused(Word):
    """What a restore does when the recorded generation is damaged."""

    FAIL = "fail"
    FALLBACK = "fallback"
    """Go on from the committed one before it."""


class DrillOutcome(Word):
    VERIFIED = "verified"
    FAILED = "failed"
