"""A save that does not fit into host memory fails before anything is staged."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import torch
from torch import nn

from drainfsm.checkpoint import Checkpoint, memory
from drainfsm.checkpoint.memory import free_host_bytes
from drainfsm.checkpoint.room import ITEM_BYTES, Room, check_room
from drainfsm.core.events import MemoryShortage
from drainfsm.core.orders import CheckpointSettings
from drainfsm.errors import NoRoomError
from drainfsm_kit.ranks import RecordedPort

KIB = 1_024
SHARE_BYTES = 2 * 256 * KIB + 1_024
"""Of the second save: weight and buffer of 256 x 256, and a bias of 256. Random states are its
fourth item."""


def machine(tmp_path: Path, files: dict[str, str]) -> Path:
    root = tmp_path / "machine"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(available_kib: int) -> dict[str, str]:
    text = f"MemTotal:  999999 kB\nMemFree:  1 kB\nMemAvailable:   {available_kib} kB\n"
    return {"proc/meminfo": text}


V2 = {
    "proc/self/cgroup": "0::/pods/job\n",
    "sys/fs/cgroup/pods/job/memory.max": "max\n",
    "sys/fs/cgroup/pods/job/memory.current": "10\n",
    "sys/fs/cgroup/pods/memory.max": "1000\n",
    "sys/fs/cgroup/pods/memory.current": "700\n",
    "sys/fs/cgroup/pods/memory.stat": "anon 500\ninactive_file 30\nactive_file 20\n",
}
V2_CONTAINER = {
    "proc/self/cgroup": "0::/kubepods/of/the/host\n",
    "sys/fs/cgroup/memory.max": "1000\n",
    "sys/fs/cgroup/memory.current": "400\n",
}
V1 = {
    "proc/self/cgroup": "9:name=systemd:/\n4:cpuset,memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "900\n",
    "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 50\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "5000\n",
}
OVER_LIMIT = V2 | {"sys/fs/cgroup/pods/memory.current": "2000\n"}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (meminfo(5), 5 * KIB),
        (meminfo(5) | V2, 350),
        (meminfo(5) | V2_CONTAINER, 600),
        (meminfo(5) | V1, 150),
        (meminfo(0) | V1, 0),
        (meminfo(5) | OVER_LIMIT, 0),
        ({}, None),
    ],
)
def test_the_least_of_machine_and_cgroups_is_free(
    tmp_path: Path, files: dict[str, str], free: int | None
) -> None:
    assert free_host_bytes(machine(tmp_path, files)) == free


def test_this_machine_says_something_sensible() -> None:
    free = free_host_bytes()
    assert free is not None
    total = int(re.findall(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[0])
    assert 0 < free < total * KIB


def room(host: str, free_bytes: int | None) -> Room:
    return Room(host=host, free_bytes=free_bytes, held_bytes=0, in_place=frozenset())


def test_ranks_of_one_host_are_added_up_and_hosts_are_not() -> None:
    rooms = [room("a", 100), room("b", 60), room("a", 101), room("b", None), room("c", None)]
    check_room(rooms, [50, 30, 50, 30, 999])
    with pytest.raises(
        NoRoomError, match=r"needs 101 bytes .* on a \(rank\(s\) 0, 2\), and 100"
    ) as refused:
        check_room(rooms, [51, 30, 50, 30, 0])
    assert vars(refused.value) == {"host": "a", "needed_bytes": 101, "free_bytes": 100}


def job(tmp_path: Path, *, free_kib: int, monkeypatch: pytest.MonkeyPatch) -> RecordedPort:
    """Three periodic saves, for the second of which there is no memory, and a drain with little."""
    plenty = machine(tmp_path / "plenty", meminfo(999_999))
    little = machine(tmp_path / "little", meminfo(free_kib))
    settings = CheckpointSettings(every_steps=1)
    store = str(tmp_path / "store")
    port = RecordedPort(tmp_path, store_url=store, settings=settings, drain_at=3)
    model = nn.Linear(256, 256)
    checkpoint = Checkpoint(port, model=model)
    for step in range(4):
        monkeypatch.setattr(memory, "ROOT", little if step in (1, 3) else plenty)
        if step == 1:
            model.register_buffer("more", torch.zeros(256, 256))
        checkpoint.step_done(step)
    checkpoint.close()
    return port


def test_a_save_without_room_fails_with_both_numbers_and_stages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed_bytes = 256 * KIB + SHARE_BYTES + 4 * ITEM_BYTES
    free_kib = needed_bytes // KIB - 1
    port = job(tmp_path, free_kib=free_kib, monkeypatch=monkeypatch)
    (failed,) = port.of("failed")
    assert f"the save needs {needed_bytes} bytes of host memory" in failed.reason
    assert f"and {free_kib * KIB} bytes are free: nothing was written" in failed.reason
    assert failed.memory == MemoryShortage(
        host=socket.gethostname(), needed_bytes=needed_bytes, free_bytes=free_kib * KIB
    )
    began = [report.generation_id for report in port.of("began")]
    assert failed.generation_id == began[1]
    staged = [report.generation_id for report in port.of("staged")]
    assert staged[:2] == [began[0], began[2]], "there is room again"
    assert len(staged) == 3, "the drain's save is not copied: it needs no room"
    assert not (tmp_path / "store" / "generations" / began[1]).exists()


def test_buffers_from_the_save_before_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what the second save has more than the first must be free."""
    needed_bytes = 256 * KIB + SHARE_BYTES + 4 * ITEM_BYTES
    port = job(tmp_path, free_kib=needed_bytes // KIB + 1, monkeypatch=monkeypatch)
    assert port.of("failed") == []
