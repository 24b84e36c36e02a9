"""The one source of randomness: a seed, and from it a stream for every purpose.

Purposes do not share a stream, so leaving out one fault does not reshuffle everything else: that
is what lets a history shrink.
"""

from __future__ import annotations

import random


class Chance:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, random.Random] = {}

    def stream(self, purpose: str) -> random.Random:
        found = self._streams.get(purpose)
        if found is None:
            found = self._streams[purpose] = random.Random(f"{self.seed}/{purpose}")
        return found
