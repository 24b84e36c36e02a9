"""Restoring: beside the bare bytes and torch's ways, and how much memory it takes (G17)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Case, Size, Topic, at_least, at_most
from bench.ranks import Ranks

WORLD_SIZE = 2
KINDS = {"": True, "replicated: ": False}
WAYS = {
    "raw parallel read": "raw",
    "dcp.load": "dcp.load",
    "torch.load(mmap=True)": "mapped",
    "drainfsm, sizes": "sizes",
    "drainfsm, checksums": "checksums",
    "peak memory": "peak",
    "cold: raw parallel read": "cold raw",
    "cold: dcp.load": "cold dcp.load",
    "cold: drainfsm, checksums": "cold checksums",
}


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as open_:
        cases: dict[str, Case] = {"one": lambda: 1.0}
        for kind, sharded in KINDS.items():
            ranks = open_.enter_context(
                Ranks(
                    "bench.restore_rank",
                    world_size=WORLD_SIZE,
                    directory=Path(directory) / ("sharded" if sharded else "replicated"),
                    mib=size.pick(480, 48),
                    sharded=sharded,
                )
            )
            cases |= {f"{kind}{name}": partial(ranks.ask, way) for name, way in WAYS.items()}
        yield cases


TOPIC = Topic(
    name="restore",
    title="Restoring 480 MiB on two ranks",
    unit="s; memory: of a rank's share",
    note="Wall time on the slowest rank, from a model that exists and an AdamW without state to "
    "both as they were; FSDP2 shards unless replicated, where each rank reads all of it. Raw: as "
    "many threads read as many bytes into the parameters and into new memory. Every case begins "
    "with an empty heap, or allocations of the one before would be warm. torch.load(mmap=True) "
    "reads a file of the rank's own. Warm: the page cache has the files; cold: none of them.",
    open=opened,
    quick=False,
    ratios=tuple(
        ratio
        for kind in KINDS
        for ratio in (
            at_most("G17", f"{kind}sizes checked, beside a raw read (floor)",
                    f"{kind}drainfsm, sizes", f"{kind}raw parallel read", goal=1.15),
            at_most("G17", f"{kind}checksums checked, beside a raw read (floor)",
                    f"{kind}drainfsm, checksums", f"{kind}raw parallel read", goal=1.3),
            at_least("G17", f"{kind}dcp.load, beside ours with checksums",
                     f"{kind}dcp.load", f"{kind}drainfsm, checksums", goal=1.0, gate=1.0),
            at_least("G17", f"{kind}torch.load(mmap=True), beside ours with checksums",
                     f"{kind}torch.load(mmap=True)", f"{kind}drainfsm, checksums"),
            at_most("G17", f"{kind}cold: checksums checked, beside a raw read (floor)",
                    f"{kind}cold: drainfsm, checksums", f"{kind}cold: raw parallel read", goal=1.3),
            at_least("G17", f"{kind}cold: dcp.load, beside ours with checksums",
                     f"{kind}cold: dcp.load", f"{kind}cold: drainfsm, checksums", goal=1.0),
            at_most("G17", f"{kind}memory at most, of the rank's share",
                    f"{kind}peak memory", "one", goal=1.1, gate=1.25),
        )
    ),
)  # fmt: skip
