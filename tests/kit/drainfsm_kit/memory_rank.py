"""A rank that saves twice, asynchronously or not, and says what it took: for memory tests.

    python -m drainfsm_kit.memory_rank DIRECTORY STATE async|sync

It says ``ready`` and its memory once its state is there, waits for a line, and then says one line a
save: bytes that the check before the save asked for, and its peak beyond what there was before.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch import nn

from drainfsm.checkpoint import Checkpoint
from drainfsm.checkpoint.room import Room, check_room
from drainfsm.core.orders import CheckpointSettings
from drainfsm_kit.ranks import RecordedPort

SAVES = 2


class Parts(nn.Module):
    def __init__(self, count: int, elements: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.parts = nn.ParameterList(
            [nn.Parameter(torch.ones(elements, dtype=dtype)) for _ in range(count)]
        )


STATES = {
    "large": lambda: Parts(8, 4 << 20),
    "half": lambda: Parts(8, 8 << 20, torch.bfloat16),
    "one": lambda: Parts(1, 32 << 20),
    "small": lambda: Parts(4_000, 2_500),
    "tiny": lambda: Parts(4_000, 30),
}


def memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1_024
    raise AssertionError(f"no {name}")


def main() -> None:
    directory, state, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    _save_once(directory / "warm", Parts(2, 1 << 20))  # imports and threads are there then
    model = STATES[state]()
    settings = CheckpointSettings(every_steps=1, asynchronous=how == "async")
    port = RecordedPort(directory, store_url=str(directory / "store"), settings=settings)
    checkpoint = Checkpoint(port, model=model)
    _say("ready")
    sys.stdin.readline()
    for step in range(SAVES):
        needed: list[int] = []
        with _recording(needed):
            before = memory("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")
            checkpoint.step_done(step)
            while len(port.of("durable")) + len(port.of("failed")) <= step:
                time.sleep(0.01)
        taken = memory("VmHWM") - before
        failed = [report.reason for report in port.of("failed")]
        _say(json.dumps({"needed": needed, "taken": taken, "failed": failed}))
    checkpoint.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def _recording(needed: list[int]) -> Iterator[None]:
    def check(rooms: Sequence[Room], needed_bytes: Sequence[int]) -> None:
        needed.append(sum(needed_bytes))
        check_room(rooms, needed_bytes)

    package = "drainfsm.checkpoint"
    with (
        mock.patch(f"{package}.planner.check_room", check),
        mock.patch(f"{package}.saving.check_room", check),
    ):
        yield


def _save_once(directory: Path, model: nn.Module) -> None:
    directory.mkdir()
    port = RecordedPort(
        directory,
        store_url=str(directory / "store"),
        settings=CheckpointSettings(every_steps=1),
    )
    checkpoint = Checkpoint(port, model=model)
    checkpoint.step_done(0)
    checkpoint.close()


if __name__ == "__main__":
    main()
