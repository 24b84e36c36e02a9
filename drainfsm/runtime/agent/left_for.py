"""What earlier attempts of the job have left for on this machine. A platform keeps stating it, and
without a memory every new attempt would leave for it again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from drainfsm.core.foreign import read_json
from drainfsm.core.notice import Notice

DIRECTORY = "left-for"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
REMEMBERED_MAX = 64
"""Notices of one node; the oldest are forgotten."""

MOVED_MS = 1_000
"""Platforms state whole seconds: a smaller difference is not another deadline."""

STALE_MS = 300_000
_REVISION = re.compile(r"~\d+$")

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
        """What cannot be read is not remembered, which costs no more than one short attempt."""
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


def judged(notice: Notice, left_for: Mapping[str, int | None], *, now_unix_ms: int) -> Notice:
    """The notice; ``advisory`` if it is not news.

    HARD: the machine really goes, as long as the instant lies ahead. One that was long past when
    its source was first read has not come true. SOFT: another instant is news, and so is what came
    while the source was watched.
    """
    deadline, identity = notice.deadline_unix_ms, remembered_as(notice)
    stated = None if notice.assumed else deadline
    hard = not notice.revocable
    if hard and notice.standing and stated is not None and stated < now_unix_ms - STALE_MS:
        ago_s = (now_unix_ms - stated) // 1_000
        return _advice(notice, f"its time passed {ago_s} s ago, and this machine lives")
    if identity not in left_for:
        return notice
    before = left_for[identity]
    if hard:
        ends = before if stated is None else stated
        if ends is not None and ends > now_unix_ms:
            return replace(notice, deadline_unix_ms=ends)
    elif stated is None:
        if notice.standing is False:
            return notice
    elif before is None or abs(stated - before) > MOVED_MS:
        return notice
    return _advice(notice, "an earlier attempt has left this machine for it already")


def remembered_as(notice: Notice) -> str:
    """Its identity, without the revision that its source counts in one attempt."""
    return _REVISION.sub("", notice.identity)


def remembered_deadline(notice: Notice) -> int | None:
    """Of a SOFT one, only what the platform stated: an assumed deadline differs in every
    attempt."""
    return None if notice.revocable and notice.assumed else notice.deadline_unix_ms


def _advice(notice: Notice, why: str) -> Notice:
    return replace(notice, advisory=True, detail=f"{notice.detail}; {why}".removeprefix("; "))


def _read(path: Path) -> Deadlines:
    try:
        return read_json(path.read_bytes(), Deadlines, ValueError)
    except (OSError, ValueError):
        return {}


def _boot() -> str:
    """Names this boot of the machine: one that was replaced or rebooted has left for nothing
    yet."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"{platform.node()}-{os.getuid()}"
