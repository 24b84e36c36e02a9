"""A rank that the kernel ended for want of memory is told from one that somebody killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainfsm.runtime.processes.oom import OutOfMemory

V2 = ("0::/job/step\n", "sys/fs/cgroup/job/step/memory.events", "low 0\nmax 9\noom_kill {}\n")
CONTAINER = ("0::/of/the/host\n", "sys/fs/cgroup/memory.events", "oom_kill {}\n")
V1 = (
    "4:cpu:/x\n3:memory:/job\n",
    "sys/fs/cgroup/memory/job/memory.oom_control",
    "under_oom 0\noom_kill {}\n",
)
MACHINE = ("", "proc/vmstat", "nr_free_pages 5\noom_kill {}\n")


@pytest.mark.parametrize(
    ("layout", "where"),
    [
        (V2, "the cgroup /job/step"),
        (CONTAINER, "the cgroup /of/the/host"),
        (V1, "the cgroup /job"),
        (MACHINE, "this machine"),
    ],
)
def test_the_counter_that_rose_says_where(
    tmp_path: Path, layout: tuple[str, str, str], where: str
) -> None:
    cgroup, name, text = layout
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.format(3))
    watch = OutOfMemory(tmp_path)
    assert watch.explanation() == ""
    file.write_text(text.format(4))
    assert watch.explanation() == f"out of memory, by the limit of {where}"
    assert watch.explanation() == ""


def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path) -> None:
    assert OutOfMemory(tmp_path).explanation() == ""


def test_the_counters_of_this_machine_can_be_read() -> None:
    assert OutOfMemory().explanation() == ""
