"""Does what the ranks will stage fit into host memory? Checked before any of them begins.

A host that runs out of memory kills a rank, and with it the job and the save. Ranks of one host
stage at the same time, so their needs are added up.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from torch.distributed.checkpoint.planner import WriteItem

from drainfsm.checkpoint.memory import free_host_bytes
from drainfsm.errors import NoRoomError

BESIDE_BYTES = 128 << 20
"""Of a rank, beside what it stages: streams to an object store hold 60 MiB each, and pages of files
that are on their way to the disk cannot be given up. A cgroup that leaves no more than 36 MiB for
them kills (measured). A share that is smaller takes no more than its own size."""

ITEM_BYTES = 5_400
"""Of a rank, for each of its items: plans, names and tensors' own objects (measured)."""


class Room(NamedTuple):
    """What one rank can say about the memory that a save would take."""

    host: str
    free_bytes: int | None
    """None: not known."""

    held_bytes: int
    """Buffers of earlier saves, which are used again."""

    in_place: frozenset[str]
    """Items that are written without a copy."""


def room_for(state: dict[str, object], *, held_bytes: int, copy: bool) -> Room:
    in_place = frozenset(
        name
        for name, value in ({} if copy else state).items()
        if isinstance(value, Tensor) and value.device.type == "cpu"
    )
    return Room(
        host=socket.gethostname(),
        free_bytes=free_host_bytes(),
        held_bytes=held_bytes,
        in_place=in_place,
    )


def staged_bytes(share: Sequence[WriteItem], room: Room, sizes: Sequence[int]) -> int:
    """How much more memory this share takes. ``sizes``: of its items."""
    copied = sum(
        size for item, size in zip(share, sizes, strict=True) if item.index.fqn not in room.in_place
    )
    beside = min(BESIDE_BYTES, sum(sizes))
    return max(0, copied - room.held_bytes) + beside + ITEM_BYTES * len(sizes)


def check_room(rooms: Sequence[Room], needed_bytes: Sequence[int]) -> None:
    """``needed_bytes``: by rank, as ``rooms``.

    Raises:
        NoRoomError: says what a host has to hold, and what it has.
    """
    for host in dict.fromkeys(room.host for room in rooms):
        ranks = [rank for rank, room in enumerate(rooms) if room.host == host]
        free = [rooms[rank].free_bytes for rank in ranks]
        known = [value for value in free if value is not None]
        needed = sum(needed_bytes[rank] for rank in ranks)
        if known and needed > min(known):
            raise NoRoomError(
                f"the save needs {needed} bytes of host memory on {host} "
                f"(rank(s) {_listed(ranks)}), and {min(known)} bytes are free: nothing was written",
                host=host,
                needed_bytes=needed,
                free_bytes=min(known),
            )


def _listed(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))
