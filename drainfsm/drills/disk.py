"""File systems of a drill's own, which can be made full, slow, or made to hang: no user of the
machine but the drill's job sees them, and they end with the drill.

A namespace of mounts holds them, as root or, where the kernel lets users make namespaces, as
anybody.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from drainfsm.drills.errors import DrillError

HOLDER = """\
mount -t tmpfs -o size=$2,mode=700 drainfsm-drill "$1" || exit
echo ready
while read -r size; do mount -o remount,size=$size "$1" && echo done || echo failed; done
"""
"""Keeps the namespace of a small file system: mounts it, and changes its size when told to."""

ENTER = 'cd "$1" && shift && exec "$@"'
ROOM = "50%"
"""Of the memory: a limit, nothing is taken before it is written."""

FILL_TRIES = 100
REWRITE_S, FSYNC_S, BYTES_PER_S_MIN = 10.0, 1.5, 200.0
HANG, SLOW, GO_ON = "hang", "slow {bytes_per_s:g} {fsync_s:g}", "go on"


class DiskError(DrillError):
    """This machine gives a drill no file system of its own."""


class DrillDisk:
    """Covers a directory, for those that are started by ``command``."""

    def __init__(self, directory: Path, holder: Sequence[str], *, seen: Path | None = None) -> None:
        """``holder``: the command that mounts it and keeps it; ``seen``: where the files are for
        everybody else, if that is somewhere.

        Raises:
            DiskError: says what is missing.
        """
        self._directory = directory
        self._as_user = os.geteuid() != 0
        missing = [name for name in ("unshare", "nsenter", "mount") if not shutil.which(name)]
        if missing:
            raise DiskError(f"{', '.join(missing)} missing (util-linux)")
        user = ("--user", "--map-current-user", "--keep-caps") if self._as_user else ()
        self._holder = subprocess.Popen(
            ["unshare", *user, "--mount", "--propagation", "private", *holder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.seen = seen or Path(f"/proc/{self._holder.pid}/root{directory}")
        """What is in it, for everybody else."""

        if self._told() != "ready":
            self._holder.kill()
            said = self._holder.communicate()[1].strip().splitlines()
            raise DiskError(said[-1] if said else "a namespace of mounts cannot be made")

    def _told(self) -> str:
        assert self._holder.stdout is not None
        return self._holder.stdout.readline().strip()

    def command(self, command: list[str]) -> list[str]:
        """The same, for whom the file system covers the directory."""
        user = ("--user", "--preserve-credentials") if self._as_user else ()
        enter = ("nsenter", "--target", str(self._holder.pid), *user, "--mount", "--")
        return [*enter, "sh", "-c", ENTER, "sh", os.getcwd(), *command]

    def order(self, what: str) -> None:
        """Raises: DiskError: the holder did not obey."""
        assert self._holder.stdin is not None
        told = ""
        with contextlib.suppress(BrokenPipeError):  # it is gone: nothing is told
            self._holder.stdin.write(f"{what}\n")
            self._holder.stdin.flush()
            told = self._told()
        if told != "done":
            raise DiskError(f"the drill's file system did not obey {what!r}: {told or 'gone'}")

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Inside, it does what its name says. Raises: DiskError."""
        self.fail()
        try:
            yield
        finally:
            self.mend()

    def fail(self) -> None:
        """Raises: DiskError."""
        raise NotImplementedError

    def mend(self) -> None:
        """As it was. Raises: DiskError."""
        raise NotImplementedError

    def close(self) -> None:
        """Leaves a copy of what was in it where it was. Raises: OSError: no room for it."""
        try:
            if self._holder.poll() is None:
                self._keep()
        finally:
            self._holder.kill()
            with contextlib.suppress(BrokenPipeError):
                self._holder.communicate()

    def _keep(self) -> None:
        shutil.copytree(self.seen, self._directory, dirs_exist_ok=True)


class SmallDisk(DrillDisk):
    """In memory; it can be made full."""

    def __init__(self, directory: Path) -> None:
        """Raises: DiskError."""
        super().__init__(directory, ("sh", "-c", HOLDER, "sh", str(directory), ROOM))

    def fail(self) -> None:
        """Not a byte more fits, though it is written to meanwhile. Raises: DiskError."""
        for tries_left in range(FILL_TRIES, 0, -1):
            try:
                stat = os.statvfs(self.seen)
            except OSError as error:
                raise DiskError(f"the drill's file system is gone: {error.strerror}") from error
            try:
                self.order(str((stat.f_blocks - stat.f_bfree) * stat.f_frsize))
            except DiskError:
                if tries_left == 1:
                    raise
            else:
                return

    def mend(self) -> None:
        self.order(ROOM)


class HangingDisk(DrillDisk):
    """Another directory, seen through a file system that can be made to hang."""

    def __init__(self, directory: Path) -> None:
        """Raises: DiskError."""
        behind = directory.with_name(f"{directory.name}.behind")
        behind.mkdir(exist_ok=True)
        program = (sys.executable, "-m", "drainfsm.drills.hanging_files")
        super().__init__(directory, (*program, str(behind), str(directory)), seen=behind)

    def fail(self) -> None:
        """Whoever writes waits until it is mended, or until he is killed. Raises: DiskError."""
        self.order(HANG)

    def mend(self) -> None:
        self.order(GO_ON)

    def _keep(self) -> None:
        self._directory.rmdir()
        self.seen.rename(self._directory)


class SlowDisk(HangingDisk):
    """The same, slow: writes and fsyncs take their time, and end."""

    def fail(self) -> None:
        """To write all that it holds once more takes ``REWRITE_S``, whatever its size. Raises:
        DiskError."""
        held_bytes = sum(path.stat().st_size for path in self.seen.rglob("*") if path.is_file())
        rate = max(BYTES_PER_S_MIN, held_bytes / REWRITE_S)
        self.order(SLOW.format(bytes_per_s=rate, fsync_s=FSYNC_S))
