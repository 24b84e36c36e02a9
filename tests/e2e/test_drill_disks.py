"""File systems of a drill's own: they hold files, they fail when they are told to, nobody else sees
them, and nothing of them is left."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainfsm.core.budget import Allowances
from drainfsm.drills import scenarios
from drainfsm.drills.disk import (
    FSYNC_S,
    REWRITE_S,
    DiskError,
    DrillDisk,
    HangingDisk,
    SlowDisk,
    SmallDisk,
)
from drainfsm.drills.job import DrillJob, DrillSettings
from drainfsm_kit.running import WAIT_S

FILES = """
import os, shutil, sys
os.chdir(sys.argv[1])
os.makedirs("a/b")
with open("a/b/x", "w") as file:
    file.write("hello" * 100_000)
os.link("a/b/x", "a/y")
try:
    os.link("a/b/x", "a/y")
except FileExistsError:
    pass
else:
    raise SystemExit("a name was given twice")
os.rename("a", "c")
assert sorted(os.listdir("c")) == ["b", "y"]
assert open("c/y").read() == open("c/b/x").read() == "hello" * 100_000
number = os.open("c", os.O_RDONLY)
os.fsync(number)
os.close(number)
with open("c/z", "wb") as file:
    file.write(bytes(range(250)) * 20_000)
    file.flush()
    os.fsync(file.fileno())
with open("c/z", "rb") as file:
    file.seek(4_999_990)
    assert file.read() == bytes(range(240, 250))
os.truncate("c/z", 5)
os.chmod("c/z", 0o600)
assert (os.stat("c/z").st_size, os.stat("c/z").st_mode & 0o777) == (5, 0o600)
os.replace("c/z", "c/y")
assert open("c/y", "rb").read() == bytes(range(5))
open("c/z", "w").close()
assert os.stat("c/z").st_size == 0, "a name that was given away names another file"
for number in range(400):
    open(f"c/{number}", "w").close()
assert len(os.listdir("c")) == 403
shutil.rmtree("c")
assert os.listdir(".") == []
open("kept", "w").write("kept")
"""

SETTINGS = DrillSettings(
    command=("true",),
    grace_s=5,
    every_steps=1,
    allowances=Allowances(),
    nats_url="nats://127.0.0.1:9",
    timeout_s=WAIT_S,
)


@pytest.fixture(params=[SmallDisk, HangingDisk, SlowDisk])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DrillDisk]:
    (tmp_path / "point").mkdir()
    try:
        made = request.param(tmp_path / "point")
    except DiskError as error:
        pytest.skip(str(error))
    yield made
    made.close()


def run(disk: DrillDisk, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        disk.command(list(command)), capture_output=True, text=True, check=False, timeout=WAIT_S
    )


def test_it_is_a_file_system_that_nobody_else_sees(disk: DrillDisk, tmp_path: Path) -> None:
    point = tmp_path / "point"
    done = run(disk, sys.executable, "-c", FILES, str(point))
    assert done.returncode == 0, done.stderr
    assert list(point.iterdir()) == []
    assert (disk.seen / "kept").read_text() == "kept"
    disk.close()
    assert (point / "kept").read_text() == "kept"
    assert str(point) not in Path("/proc/mounts").read_text()


def test_a_full_one_takes_nothing_and_an_emptied_one_does(disk: DrillDisk, tmp_path: Path) -> None:
    if not isinstance(disk, SmallDisk):
        return
    write = ("dd", "if=/dev/zero", f"of={tmp_path}/point/x", "bs=64k", "count=4")
    assert run(disk, *write).returncode == 0
    disk.fail()
    full = run(disk, *write[:2], f"of={tmp_path}/point/y", *write[3:])
    assert "No space left on device" in full.stderr
    assert (disk.seen / "x").stat().st_size == 4 * 65_536
    disk.mend()
    assert run(disk, *write).returncode == 0


def test_who_writes_to_one_that_hangs_waits_and_can_be_killed(
    disk: DrillDisk, tmp_path: Path
) -> None:
    if type(disk) is not HangingDisk:
        return
    write = ("dd", "if=/dev/zero", f"of={tmp_path}/point/x", "bs=64k", "count=4")
    assert run(disk, *write).returncode == 0
    disk.fail()
    assert run(disk, "cat", f"{tmp_path}/point/x").returncode == 0
    for _ in range(2):
        late = subprocess.Popen(disk.command([*write]), stderr=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            late.wait(1)
        late.kill()
        late.wait(WAIT_S)
    waits = subprocess.Popen(disk.command([*write]), stderr=subprocess.DEVNULL)
    with pytest.raises(subprocess.TimeoutExpired):
        waits.wait(1)
    disk.mend()
    assert waits.wait(WAIT_S) == 0


def test_a_slow_one_takes_its_time_and_ends_and_who_waits_can_be_killed(
    disk: DrillDisk, tmp_path: Path
) -> None:
    if not isinstance(disk, SlowDisk):
        return
    write = ("dd", "if=/dev/zero", f"of={tmp_path}/point/x", "bs=64k", "count=4")
    assert run(disk, *write).returncode == 0
    with disk.failing():
        began = time.monotonic()
        assert run(disk, "sync", f"{tmp_path}/point/x").returncode == 0
        assert time.monotonic() - began >= FSYNC_S
        assert run(disk, *write).returncode == 0
        assert time.monotonic() - began >= REWRITE_S
        late = subprocess.Popen(disk.command([*write]), stderr=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            late.wait(1)
        late.kill()
        late.wait(WAIT_S)
    assert (disk.seen / "x").stat().st_size <= 4 * 65_536


def test_one_whose_keeper_is_gone_is_an_error_and_what_it_held_stays(
    disk: DrillDisk, tmp_path: Path
) -> None:
    disk._holder.kill()
    disk._holder.wait()
    with pytest.raises(DiskError, match="gone"):
        disk.fail()
    disk.close()


def test_a_machine_that_has_none_to_give_says_so_and_the_drill_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(DiskError, match="unshare, nsenter, mount missing"):
        SmallDisk(tmp_path)
    for name in ("unshare", "nsenter", "mount"):
        refuses = tmp_path / "bin" / name
        refuses.write_text("#!/bin/sh\necho 'unshare: Operation not permitted' >&2; exit 1\n")
        refuses.chmod(0o755)
    with pytest.raises(DiskError, match="Operation not permitted"):
        SmallDisk(tmp_path)
    for name in ("full-store", "hanging-store", "slow-store"):
        job = DrillJob(tmp_path / name, SETTINGS)
        kind = scenarios.SCENARIOS[name].disk
        assert kind is not None
        job.put_store_on(kind)
        assert job.disk is None
        assert job.note == "no file system of its own: unshare: Operation not permitted"
        assert job.store_seen == job.store
