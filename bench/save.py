"""Saving: how long training is blocked, when it is durable, what checksums cost (G12-G14)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Case, Size, Topic, at_most
from bench.ranks import Ranks

WORLD_SIZE = 2
CASES = {
    "raw write + fsync": "raw",
    "dcp.save": "dcp.save",
    "dcp.save, 2 threads": "dcp.save, 2 threads",
    "drainfsm, xxh3_128": "xxh3",
    "drainfsm, sha256": "sha256",
    "drainfsm, sha256_tree": "sha256_tree",
    "drainfsm, no checksum": "no checksum",
    "sha256 alone": "hashing",
    "copy into warm memory": "warm copy",
    "blocked: dcp.async_save": "async_save",
    "blocked: drainfsm": "async",
    "blocked, replicated: dcp.async_save": "replicated async_save",
    "blocked, replicated: drainfsm": "replicated async",
    "replicated: share of the bytes staged": "replicated staged",
}


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    mib = size.pick(256, 64)
    with (
        tempfile.TemporaryDirectory() as directory,
        Ranks(
            "bench.save_rank", world_size=WORLD_SIZE, directory=Path(directory), mib=mib
        ) as ranks,
    ):
        cases: dict[str, Case] = {name: partial(ranks.ask, case) for name, case in CASES.items()}
        yield cases | {"one": lambda: 1.0}


TOPIC = Topic(
    name="save",
    title="Saving 256 MiB on two ranks",
    unit="s",
    note="Wall time on the slowest rank. FSDP2 shards unless replicated. drainfsm's time goes to "
    "the commit record: files and directories synced, entries checked, manifest and slot written. "
    "dcp.save (sync_files=True) ends before its directory is synced, and .metadata may be empty.",
    open=opened,
    quick=False,
    ratios=(
        at_most("G12", "blocked, beside async_save",
                "blocked: drainfsm", "blocked: dcp.async_save", goal=0.25),
        at_most("G12", "limit: copy of the same bytes into warm memory, beside async_save",
                "copy into warm memory", "blocked: dcp.async_save"),
        at_most("G12", "blocked, replicated, beside async_save",
                "blocked, replicated: drainfsm", "blocked, replicated: dcp.async_save", goal=0.25),
        at_most("G12", "replicated: share staged by a rank",
                "replicated: share of the bytes staged", "one", goal=0.55, gate=0.6),
        at_most("G13", "durable and committed, beside raw write + fsync (floor)",
                "drainfsm, xxh3_128", "raw write + fsync", goal=1.3),
        at_most("G13", "dcp.save, beside raw write + fsync",
                "dcp.save", "raw write + fsync"),
        at_most("G13", "durable and committed, beside dcp.save",
                "drainfsm, xxh3_128", "dcp.save"),
        at_most("G14", "with xxh3_128, beside no checksum",
                "drainfsm, xxh3_128", "drainfsm, no checksum", goal=1.05),
        at_most("G14", "with sha256, beside no checksum",
                "drainfsm, sha256", "drainfsm, no checksum", goal=1.12),
        at_most("G14", "with sha256_tree, beside no checksum",
                "drainfsm, sha256_tree", "drainfsm, no checksum"),
        at_most("G14", "limit: sha256 of these bytes on one core a rank, beside the save without",
                "sha256 alone", "drainfsm, no checksum"),
    ),
)  # fmt: skip
