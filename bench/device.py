"""Saving from a device and restoring to it, on one GPU, in less than five minutes.

    python -m bench.device [--mib 4096] [--rounds 5]

Without a GPU the state is on the CPU, what needs a device is left out, and the table says so.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from bench import report
from bench.device_job import Copies, Job
from bench.harness import Case, Ratio, Size, Topic, at_most, measure


@contextmanager
def opened(size: Size, *, mib: int, device: torch.device) -> Iterator[dict[str, Case]]:
    directory = Path(tempfile.mkdtemp())
    job = Job(directory, mib=mib, device=device)
    cases: dict[str, Case] = {
        "blocked: torch.save": job.torch_save,
        "blocked: dcp.async_save": job.dcp_async_save,
        "blocked: drainfsm": job.async_save,
        "durable: drainfsm, held": job.drain_save,
        "restore: torch.load": job.torch_load,
        "restore: dcp.load": job.dcp_load,
        "restore: drainfsm": job.restore,
    }
    if device.type == "cuda":
        copies = Copies(job.tensors())
        cases |= {
            "copy to pinned memory": partial(copies.to_host, pinned=True),
            "copy to pageable memory": partial(copies.to_host, pinned=False),
            "copy from pinned memory": copies.to_device,
            "compute alone": partial(copies.compute, beside=False),
            "compute, copy on a stream beside it": partial(copies.compute, beside=True),
        }
    try:
        yield cases
    finally:
        job.close()
        shutil.rmtree(directory)


def topic(*, mib: int, device: torch.device) -> Topic:
    on_device = device.type == "cuda"
    where = torch.cuda.get_device_name(device) if on_device else "no GPU: device parts left out"
    return Topic(
        name="device",
        title=f"{mib} MiB on one process ({where})",
        unit="s",
        note="Wall time, the device synchronised before and after. A model and AdamW's state. "
        "Blocked: until training could go on. Restoring: from a model that exists, warm files. "
        "Held: a drain's save, to the last byte durable, which copies host memory not at all.",
        open=partial(opened, mib=mib, device=device),
        quick=False,
        ratios=tuple(_ratios(on_device=on_device)),
    )


def _ratios(*, on_device: bool) -> Iterator[Ratio]:
    yield at_most(
        "G12",
        "blocked, beside dcp.async_save",
        "blocked: drainfsm",
        "blocked: dcp.async_save",
        goal=0.3,
    )
    yield at_most("G12", "blocked, beside torch.save", "blocked: drainfsm", "blocked: torch.save")
    yield at_most(
        "G17", "restore, beside dcp.load", "restore: drainfsm", "restore: dcp.load", goal=1.0
    )
    if not on_device:
        return
    yield at_most(
        "G12",
        "blocked, beside a copy to pinned memory (floor)",
        "blocked: drainfsm",
        "copy to pinned memory",
        goal=1.3,
    )
    yield at_most(
        "G12",
        "copy to pinned memory, beside pageable memory",
        "copy to pinned memory",
        "copy to pageable memory",
    )
    yield at_most(
        "G12",
        "compute with a copy beside it, beside compute alone",
        "compute, copy on a stream beside it",
        "compute alone",
    )
    yield at_most("G17", "restore, beside a copy from pinned memory (floor)",
                  "restore: drainfsm", "copy from pinned memory")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.device", description=__doc__)
    parser.add_argument("--mib", type=int, default=4096 if torch.cuda.is_available() else 256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = measure(topic(mib=options.mib, device=device), Size(rounds=options.rounds))
    print(report.markdown(found))


if __name__ == "__main__":
    main()
