"""What earlier attempts of the job have left for on this machine. A platform goes on saying it, and
without a memory every new attempt would leave for it again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm.core.notice import Notice, NoticeClass

DIRECTORY = "left-for"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
REMEMBERED_MAX = 64
"""Notices of one node; the oldest are forgotten."""

MOVED_MS = 1_000
"""Platforms state whole seconds: less is no other deadline."""

Deadlines = dict[str, int | None]
"""In UTC milliseconds by ``Notice.identity``; None: it stated none."""


class LeftFor:
    """The memory of one node's agent: a file in the job's state directory.

    The directory may be shared by machines, so the files are named by the machine's boot, and by
    the node rank where several agents share a machine. What the others there wrote counts, too.
    """

    def __init__(self, state_dir: Path, *, job: str, node_rank: int) -> None:
        self._directory = state_dir / job / DIRECTORY
        self._name = f"{_boot()}-{node_rank}.json"

    def read(self) -> Deadlines:
        """What cannot be read is not remembered: one short attempt more is all that it costs."""
        found: Deadlines = {}
        for path in sorted(self._directory.glob(f"{_boot()}-*.json")):
            found |= _read(path)
        return found

    def add(self, notices: Mapping[str, int | None]) -> None:
        """Blocks on the disk. Raises: OSError."""
        if not notices:
            return
        path = self._directory / self._name
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {key: at for key, at in _read(path).items() if key not in notices}
        newest = list({**kept, **notices}.items())[-REMEMBERED_MAX:]
        fd, fresh = tempfile.mkstemp(dir=path.parent, prefix=".left-for-")
        try:
            with open(fd, "wb") as file:
                file.write(msgspec.json.encode(dict(newest)))
            Path(fresh).replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                Path(fresh).unlink()
            raise


def is_news(notice: Notice, left_for: Mapping[str, int | None], *, now_unix_ms: int) -> bool:
    """Whether the job has to do something about the notice, although it stands in ``left_for``.

    HARD: the machine really goes, as long as the instant lies ahead. SOFT: another instant.
    """
    if notice.identity not in left_for:
        return True
    deadline, before = notice.deadline_unix_ms, left_for[notice.identity]
    if deadline is None:
        return False
    if notice.notice_class is NoticeClass.HARD:
        return deadline > now_unix_ms
    return before is None or abs(deadline - before) > MOVED_MS


def _read(path: Path) -> Deadlines:
    try:
        return read_json(path.read_bytes(), Deadlines, ValueError)
    except (OSError, ValueError):
        return {}


def _boot() -> str:
    """Since when the machine runs: one that was replaced or started anew has left for nothing."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"{platform.node()}-{os.getuid()}"
