"""What a save takes of host memory: as much as it was asked whether there is, and never more."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drainfsm.checkpoint.room import BESIDE_BYTES

MIB = 1 << 20
SHARE_BYTES = 128 * MIB
MEMORY_V1 = Path("/sys/fs/cgroup/memory")


def rank(directory: Path, state: str, how: str, *, cgroup: Path | None = None) -> Any:
    command = [sys.executable, "-W", "ignore", "-m", "drainfsm_kit.memory_rank"]
    enter = f"echo $$ > {cgroup}/cgroup.procs && " if cgroup else ""
    return subprocess.Popen(
        ["sh", "-c", f'{enter}exec "$@"', "sh", *command, str(directory), state, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("state", ["large", "half", "one", "small", "tiny"])
def test_what_is_asked_for_is_what_is_taken(tmp_path: Path, state: str) -> None:
    """Beside it, memory is held for what goes to the store."""
    answer, _ = rank(tmp_path, state, "async").communicate("go\n")
    first, second = map(json.loads, answer.splitlines()[1:])
    assert first["failed"] == second["failed"] == []
    share = 4_000 * 4 * {"small": 2_500, "tiny": 30}.get(state, 0) or SHARE_BYTES
    asked = first["needed"][0] - min(BESIDE_BYTES, share)
    assert first["taken"] <= 1.05 * asked + 2 * MIB
    if state in ("large", "half", "one"):
        assert first["taken"] >= 0.95 * asked
        assert first["taken"] <= 1.1 * SHARE_BYTES
        assert second["taken"] < 0.1 * SHARE_BYTES, "the buffers are used again"


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Below our own, where we may make one."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = [path for _, names, path in lines if "memory" in names.split(",")]
    if not paths or not (MEMORY_V1 / paths[0].lstrip("/")).is_dir():
        pytest.skip("no memory controller of cgroup v1")
    made = MEMORY_V1 / paths[0].lstrip("/") / f"drainfsm-{uuid.uuid4().hex}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a cgroup: {error}")
    yield made
    made.rmdir()


@pytest.mark.parametrize("how", ["async", "sync"])
@pytest.mark.parametrize("left_mib", [8, 40, 128 + 8, 128 + 40, 128 + 128 + 16])
def test_a_save_under_pressure_fails_before_it_takes_memory_or_not_at_all(
    tmp_path: Path, cgroup: Path, how: str, left_mib: int
) -> None:
    process = rank(tmp_path, "large", how, cgroup=cgroup)
    process.stdout.readline()
    stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    limit = int(stat["total_rss"]) + left_mib * MIB
    (cgroup / "memory.limit_in_bytes").write_text(str(limit))
    answer, _ = process.communicate("go\n")
    assert process.returncode == 0, "killed for want of memory"
    for save in map(json.loads, answer.splitlines()):
        needed_mib = (SHARE_BYTES if how == "async" else 0) + BESIDE_BYTES
        if left_mib * MIB < needed_mib:
            assert "bytes of host memory" in save["failed"][0]
            assert "nothing was written" in save["failed"][0]
            assert save["taken"] < 16 * MIB
        elif left_mib * MIB > needed_mib + 64 * MIB:
            assert save["failed"] == []
