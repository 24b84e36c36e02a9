"""Saving to and restoring from an object store: beside bare obstore and a peer (G18)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Case, Size, Topic, at_least, at_most
from bench.ranks import Ranks
from drainfsm_kit.s3 import environment, s3_file_server, s3_server

WORLD_SIZE = 2
SERVERS: dict[str, tuple[Callable[[], AbstractContextManager[int]], int]] = {
    "": (partial(s3_file_server, below="/dev/shm"), 512),
    "moto: ": (s3_server, 64),
}
"""With how many MiB: moto keeps what every round has written."""
WAYS = {
    "obstore, put in parts": "bare put",
    "dcp.save, s3torchconnector": "peer save",
    "drainfsm, committed": "save",
    "obstore, get in ranges": "bare get",
    "dcp.load, s3torchconnector": "peer load",
    "drainfsm, restore, sizes": "restore sizes",
    "drainfsm, restore, checksums": "restore checksums",
    "memory beside the state, save: MiB": "save MiB",
    "memory beside the state, restore: MiB": "restore MiB",
}


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    cases: dict[str, Case] = {}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as open_:
        for server, (serve, mib) in SERVERS.items():
            port = open_.enter_context(serve())
            with environment(port):
                ranks = open_.enter_context(
                    Ranks(
                        "bench.objects_rank",
                        world_size=WORLD_SIZE,
                        directory=Path(directory) / f"of{port}",
                        mib=size.pick(mib, 16),
                    )
                )
            cases |= {f"{server}{name}": partial(ranks.ask, way) for name, way in WAYS.items()}
        yield cases


TOPIC = Topic(
    name="objects",
    title="Saving 512 MiB to S3 from two ranks, and back; 64 MiB with moto",
    unit="s; memory: MiB",
    note="Wall time on the slowest rank, over HTTP on this machine, to localbucket (threads; files "
    "in memory) and to moto (one process, in memory, which reads a whole object for every range of "
    "it). The servers are written in Python and share the cores with the ranks: what is compared "
    "is what a client asks of them. Bare obstore puts a rank's bytes as two objects, with its own "
    "parts, and gets them by ranges of 4 MiB, 16 at once, into memory that is there. drainfsm's "
    "time goes to the commit record: files checked, manifest and slot written.",
    open=opened,
    quick=False,
    ratios=tuple(
        ratio
        for server in SERVERS
        for ratio in (
            at_most("G18", f"{server}committed, beside bare obstore (floor)",
                    f"{server}drainfsm, committed", f"{server}obstore, put in parts", goal=1.2),
            at_least("G18", f"{server}dcp.save with s3torchconnector, beside ours",
                     f"{server}dcp.save, s3torchconnector", f"{server}drainfsm, committed"),
            at_most("G18", f"{server}sizes checked, beside bare obstore (floor)",
                    f"{server}drainfsm, restore, sizes", f"{server}obstore, get in ranges",
                    goal=1.2),
            at_most("G18", f"{server}checksums checked, beside bare obstore (floor)",
                    f"{server}drainfsm, restore, checksums", f"{server}obstore, get in ranges"),
            at_least("G18", f"{server}dcp.load with s3torchconnector, beside ours with checksums",
                     f"{server}dcp.load, s3torchconnector",
                     f"{server}drainfsm, restore, checksums"),
        )
    ),
)  # fmt: skip
