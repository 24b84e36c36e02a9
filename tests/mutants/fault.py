"""What a fault is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Fault(NamedTuple):
    """Replace ``old`` by ``new`` in ``file``: ``name`` says what is then wrong."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Of which one must notice it; the likeliest and quickest first."""

    @property
    def module(self) -> str:
        """The package, or the file where it is a room of its own."""
        room, _, rest = self.file.removeprefix("drainfsm/").partition("/")
        inner = rest.partition("/")[0]
        return f"{room}/{inner}" if room == "runtime" or inner == "posix.py" else room


def faults_of(
    file: str, tests: tuple[str, ...], rows: Iterable[tuple[str, str, str]]
) -> Iterator[Fault]:
    """``rows``: name, old, new."""
    for name, old, new in rows:
        top = "adapters" if file.startswith("drainfsm_adapters/") else "drainfsm"
        yield Fault(name, f"{top}/{file}", old, new, tests)
