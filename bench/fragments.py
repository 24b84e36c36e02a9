"""Saving states of many small tensors (G19): blocked, durable, and the CPU time that it takes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Case, Size, Topic, at_most
from bench.ranks import Ranks

WORLD_SIZE = 2
KINDS = {
    "small": {"width": 16, "sharded": False},
    "AdamW": {"width": 64, "sharded": True, "optimizer": True},
}
COUNTS = {"small": (5_000, 500), "AdamW": (600, 100)}
"""Parameters, in full and in the quick subset."""

WAYS = {
    "raw write + fsync": "raw",
    "dcp.save": "dcp.save",
    "drainfsm": "durable",
    "blocked: dcp.async_save": "async_save",
    "blocked: drainfsm": "async",
    "CPU: dcp.async_save": "async_save cpu",
    "CPU: drainfsm": "async cpu",
}


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as open_:
        cases: dict[str, Case] = {}
        for kind, options in KINDS.items():
            ranks = open_.enter_context(
                Ranks(
                    "bench.fragments_rank",
                    world_size=WORLD_SIZE,
                    directory=Path(directory) / kind,
                    count=size.pick(*COUNTS[kind]),
                    **options,
                )
            )
            cases |= {f"{kind}: {name}": partial(ranks.ask, way) for name, way in WAYS.items()}
        yield cases


TOPIC = Topic(
    name="fragments",
    title="Saving 5,000 small tensors, and 600 parameters with AdamW",
    unit="s",
    note="Two ranks, FSDP2 shards of 16 KiB parameters with both moments (AdamW: 4,200 items), and "
    "replicated parameters of 1 KiB (small). Wall time on the slowest rank, unless CPU: of all "
    "threads of a rank in the same save, from the call until all is written. A save like the one "
    "before it: the first one plans. drainfsm's durable time goes to the commit record.",
    open=opened,
    quick=False,
    ratios=tuple(
        ratio
        for kind in KINDS
        for ratio in (
            at_most("G19", f"{kind}: blocked, beside async_save",
                    f"{kind}: blocked: drainfsm", f"{kind}: blocked: dcp.async_save",
                    goal=0.3, gate=0.6),
            at_most("G19", f"{kind}: CPU time of a save, beside async_save",
                    f"{kind}: CPU: drainfsm", f"{kind}: CPU: dcp.async_save", goal=0.3, gate=0.5),
            at_most("G19", f"{kind}: durable and committed, beside dcp.save",
                    f"{kind}: drainfsm", f"{kind}: dcp.save", goal=0.5, gate=0.8),
            at_most("G19", f"{kind}: durable and committed, beside raw write + fsync (floor)",
                    f"{kind}: drainfsm", f"{kind}: raw write + fsync"),
        )
    ),
)  # fmt: skip
