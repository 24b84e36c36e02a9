"""What really happened in simulations, counted by class: a fault that hit nothing is not in it."""

from __future__ import annotations

from collections import Counter


class Tally:
    """Of one simulation, or summed over many."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()
        """By class, how often one took effect."""

        self.fault_seeds: Counter[str] = Counter()
        """By class, in how many simulations."""

        self.notices: Counter[tuple[str, str]] = Counter()
        """By kind of notice, and the state in which the coordinator was when it was heard."""

        self.outcomes: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """Records, processes, messages and the like."""

        self.entered: set[str] = set()
        """Functions of the product, where that was watched."""

    def hit(self, fault: str) -> None:
        self.faults[fault] += 1

    @property
    def journal_faults(self) -> bool:
        """The journal could not be written at once."""
        return any(self.faults[f"journal_{kind}"] for kind in ("full", "slow", "hung"))

    def close(self) -> None:
        """The simulation is over."""
        self.fault_seeds = Counter(dict.fromkeys(self.faults, 1))

    def add(self, other: Tally) -> None:
        self.faults += other.faults
        self.fault_seeds += other.fault_seeds
        self.notices += other.notices
        self.outcomes += other.outcomes
        self.counts += other.counts
        self.entered |= other.entered
