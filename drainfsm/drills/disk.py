"""A file system of a drill's own, which can be made full: no user of the machine but the drill's
job sees it, and it ends with the drill.

A namespace of mounts holds it, as root or, where the kernel lets users make namespaces, as anybody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from drainfsm.drills.errors import DrillError

HOLDER = """\
mount -t tmpfs -o size=$2,mode=700 drainfsm-drill "$1" || exit
echo ready
while read -r size; do mount -o remount,size=$size "$1" && echo done || echo failed; done
"""
"""What keeps the namespace: it mounts, and changes the size when it is told to."""

ENTER = 'cd "$1" && shift && exec "$@"'
ROOM = "50%"
"""Of the memory: a limit, nothing is taken before it is written."""


class DiskError(DrillError):
    """This machine gives a drill no file system of its own."""


class DrillDisk:
    """Covers a directory, for those that are started by ``command``."""

    def __init__(self, directory: Path) -> None:
        """Raises: DiskError: says what is missing."""
        self._directory = directory
        self._as_user = os.geteuid() != 0
        missing = [name for name in ("unshare", "nsenter", "mount") if not shutil.which(name)]
        if missing:
            raise DiskError(f"{', '.join(missing)} missing (util-linux)")
        user = ("--user", "--map-current-user", "--keep-caps") if self._as_user else ()
        private = ("--mount", "--propagation", "private")
        self._holder = subprocess.Popen(
            ["unshare", *user, *private, "sh", "-c", HOLDER, "sh", str(directory), ROOM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if self._told() != "ready":
            self._holder.kill()
            said = self._holder.communicate()[1].strip()
            raise DiskError(said or "a namespace of mounts cannot be made")

    def _told(self) -> str:
        assert self._holder.stdout is not None
        return self._holder.stdout.readline().strip()

    def command(self, command: list[str]) -> list[str]:
        """The same, for whom the file system covers the directory."""
        user = ("--user", "--preserve-credentials") if self._as_user else ()
        enter = ("nsenter", "--target", str(self._holder.pid), *user, "--mount", "--")
        return [*enter, "sh", "-c", ENTER, "sh", os.getcwd(), *command]

    @property
    def seen(self) -> Path:
        """What is in it, for everybody else."""
        return Path(f"/proc/{self._holder.pid}/root{self._directory}")

    def fill(self) -> None:
        """Not a byte more fits. Raises: DiskError."""
        stat = os.statvfs(self.seen)
        self._resize(str((stat.f_blocks - stat.f_bfree) * stat.f_frsize))

    def free(self) -> None:
        """As it was. Raises: DiskError."""
        self._resize(ROOM)

    def _resize(self, size: str) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.write(f"{size}\n")
        self._holder.stdin.flush()
        if (told := self._told()) != "done":
            raise DiskError(f"its size cannot be changed to {size}: {told}")

    def close(self) -> None:
        """Leaves a copy of what was in it where it was."""
        if self._holder.poll() is None:
            shutil.copytree(self.seen, self._directory, dirs_exist_ok=True)
            self._holder.kill()
        self._holder.communicate()
