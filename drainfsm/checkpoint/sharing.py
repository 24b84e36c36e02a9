"""Replicated tensors: read once on every node, and sent from there to its other ranks.

On object stores only, where each byte that is read takes its time on the network. Files are in the
page cache after the first read, and reading them from there is faster than sending (measured: two
ranks, 512 MiB, 0.19 s beside 0.29).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.tensor import DTensor

from drainfsm.checkpoint.exchange import Exchange
from drainfsm.checkpoint.filling import SMALL_BYTES
from drainfsm.core.manifest import Manifest

BOOT = Path("/proc/sys/kernel/random/boot_id")


class Common(NamedTuple):
    """What a rank could take from another one. Ranks that say the same share it."""

    machine: str
    """Empty: it does not say which it is."""

    digest: str
    """Of the names, kinds and shapes; empty: there is nothing."""


def common(targets: dict[str, Any]) -> Common:
    names = _shareable(targets)
    text = "\n".join(f"{name} {targets[name].dtype} {list(targets[name].shape)}" for name in names)
    digest = hashlib.sha256(text.encode()).hexdigest() if names else ""
    try:
        machine = BOOT.read_text().strip()
    except OSError:  # a sandbox need not have it
        machine = ""
    return Common(machine=machine, digest=digest)


class Sharing:
    """Of one restore, on one rank."""

    def __init__(
        self, exchange: Exchange, all_common: list[Common], targets: dict[str, Any]
    ) -> None:
        """``all_common``: what each rank has said."""
        mine = all_common[exchange.rank]
        self._exchange = exchange
        self._members = [rank for rank, said in enumerate(all_common) if said == mine]
        together = mine.machine and mine.digest and len(self._members) > 1
        self._tensors: dict[str, Tensor] = (
            {name: targets[name].detach() for name in _shareable(targets)} if together else {}
        )
        self._readers: dict[str, int] = {}

    def to_read(
        self, targets: dict[str, Any], metadata: Metadata, manifest: Manifest
    ) -> dict[str, Any]:
        """The targets without what another rank reads. The one that hashes a file reads it."""
        ranks = {entry.name: entry.rank for entry in manifest.entries}
        for name in self._tensors:
            chunk = metadata.state_dict_metadata[name].chunks[0]  # type: ignore[union-attr]
            stored = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            rank = ranks[stored.relative_path] % self._exchange.world_size
            there = rank in self._members
            self._readers[name] = rank if there else self._members[rank % len(self._members)]
        here = self._exchange.rank
        return {name: to for name, to in targets.items() if self._readers.get(name, here) == here}

    def send(self) -> None:
        """Collective among the ranks that share, once all of them have read."""
        places = [(self._readers[name], place) for name, place in self._tensors.items()]
        if places:
            self._exchange.send_each(places, self._members)


def _shareable(targets: dict[str, Any]) -> list[str]:
    """Large ones in host memory: small ones are read with their neighbours sooner than they are
    sent."""
    return sorted(
        name
        for name, place in targets.items()
        if isinstance(place, Tensor)
        and not isinstance(place, DTensor)
        and place.device.type == "cpu"
        and place.nbytes > SMALL_BYTES
        and place.is_contiguous()
        and not (place.is_conj() or place.is_neg())
    )
