"""The checkpoint store: whether it can hold a commit log, whether it lasts, how fast it is, how
much room it has."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from drainfsm.doctor.findings import Finding, Setup, error, note, right, warning
from drainfsm.errors import ConfigError, DrainfsmError
from drainfsm.policy.plan_text import size
from drainfsm.store import CommitLog, ObjectStore, PosixStore
from drainfsm.store.probe import check_promises

PROBE_BYTES = 32 << 20
PIECE = os.urandom(1 << 20)
PROBES = "doctor/"
GENERATIONS_KEPT = 2
"""A drain writes a new one before anything old may go."""

VOLATILE = frozenset({"tmpfs", "ramfs", "devtmpfs"})
IN_CONTAINER = frozenset({"overlay", "aufs"})
MOUNTS = Path("/proc/mounts")


class Mount(NamedTuple):
    point: str
    kind: str
    options: frozenset[str]


def check_store(setup: Setup, store: ObjectStore) -> Iterator[Finding]:
    """Writes a few objects of its own, and removes them. Nothing is claimed."""
    if isinstance(store, PosixStore) and not store.root.is_dir():
        parent = store.root.parent
        if store.root.exists():
            yield error(
                "store",
                f"{store.root} is a file",
                why="the job would refuse to start",
                fix="drainfsm doctor --store DIR …",
            )
        elif parent.is_dir():
            yield note("store", f"{store.root} is not there yet; the first start makes it")
        else:
            yield error(
                "store",
                f"{parent} does not exist",
                why="a file system that is not mounted is not a fresh start: the job refuses",
                fix=f"mount | grep {parent}; for a new place: drainfsm run --create-store …",
            )
        return
    try:
        check_promises(store, name=f"doctor-{secrets.token_hex(8)}", pause=time.sleep)
    except (ConfigError, DrainfsmError) as problem:
        yield error(
            "store",
            str(problem),
            why="no attempt can claim the job there, or two can",
            fix="check mount, credentials and rights; choose a store that docs/operate.md names",
        )
        return
    yield right("store", f"{store.url} keeps put-if-absent, read-after-write and list-after-write")
    yield from _check_owner(setup, store)
    if isinstance(store, PosixStore):
        yield from check_mount("store", store.root)
        yield from _check_space(setup, store.root)
        yield from _check_clock(store)
    yield from _check_bandwidth(setup, store)


def _check_owner(setup: Setup, store: ObjectStore) -> Iterator[Finding]:
    try:
        CommitLog(store, job_id=setup.job).head()
    except DrainfsmError as problem:
        yield error(
            "commit log",
            str(problem),
            why="the job would refuse to start",
            fix="name the store of this job, or restore what is damaged from a backup",
        )


def check_mount(check: str, path: Path) -> Iterator[Finding]:
    """Whether what is fsynced there is still there after a power cut, and on another machine."""
    mount = mount_of(path)
    if mount is None:
        return
    if mount.kind in VOLATILE:
        yield error(
            check,
            f"{path} lies in memory ({mount.kind} on {mount.point})",
            why="an fsync there promises nothing: it is gone with the machine",
            fix="choose a directory on a disk or a shared file system",
        )
    elif mount.kind in IN_CONTAINER:
        yield warning(
            check,
            f"{path} lies in the container's own layer ({mount.kind})",
            why="it is gone with the container, and no other node sees it",
            fix="mount a volume there",
        )
    elif loose := mount.options & {"nobarrier", "barrier=0", "async", "soft"}:
        yield warning(
            check,
            f"{mount.point} is mounted with {', '.join(sorted(loose))}",
            why="an fsync may return before the bytes last, or fail where it should wait",
            fix=f"mount -o remount,barrier,hard {mount.point}",
        )


def mount_of(path: Path) -> Mount | None:
    """The mount that holds the path, which may not be there yet; None: not known."""
    path = path.resolve()
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return None
    found: Mount | None = None
    for line in lines:
        _, point, kind, options, *_ = [*line.split(" "), "", "", "", ""]
        point = point.replace("\\040", " ")
        inside = point == "/" or str(path) == point or str(path).startswith(point + "/")
        if inside and (found is None or len(point) >= len(found.point)):
            found = Mount(point, kind, frozenset(options.split(",")))
    return found


def _check_space(setup: Setup, root: Path) -> Iterator[Finding]:
    stat = os.statvfs(root)
    free = stat.f_bavail * stat.f_frsize
    needed = setup.save_bytes * GENERATIONS_KEPT
    if free < needed:
        yield error(
            "store space",
            f"{size(free)} are free, and {GENERATIONS_KEPT} checkpoints need {size(needed)}",
            why="the save of a drain would fail for want of room",
            fix=f"drainfsm gc --store {root} --job {setup.job} --keep-last 2 --delete",
        )
    elif stat.f_files and stat.f_favail < 1_000:
        yield error(
            "store space",
            f"{stat.f_favail} inodes are free",
            why="each rank writes files of its own",
            fix=f"df -i {root}",
        )
    elif needed:
        yield right("store space", f"{size(free)} are free")


def _check_clock(store: PosixStore) -> Iterator[Finding]:
    """A file server stamps files by a clock of its own."""
    name = f"{PROBES}{secrets.token_hex(8)}"
    before = time.time_ns()
    store.put(name, b"x")
    path = store.root / name
    ahead_s = (path.stat().st_mtime_ns - before) / 1e9
    after_s = (time.time_ns() - before) / 1e9
    store.delete(name)
    if not -2.0 <= ahead_s <= after_s + 2.0:
        yield warning(
            "clock",
            f"the file server's clock is {ahead_s:+.1f} s off ours",
            why="deadlines are instants: a clock that is off is a window that is shorter",
            fix="chronyc tracking   # on this node and on the server",
        )


def write_bandwidth(store: ObjectStore) -> int:
    """Durable bytes a second of one writer, by a probe that is removed again.

    Raises:
        StoreUnreachableError: it cannot be written.
    """
    tree = f"{PROBES}{secrets.token_hex(8)}/"
    store.create_tree(tree)
    began = time.monotonic()
    try:
        with store.writer(f"{tree}probe") as file:
            for _ in range(PROBE_BYTES // len(PIECE)):
                file.write(PIECE)
        return round(PROBE_BYTES / max(time.monotonic() - began, 1e-3))
    finally:
        with contextlib.suppress(DrainfsmError):
            store.delete_tree(tree)


def _check_bandwidth(setup: Setup, store: ObjectStore) -> Iterator[Finding]:
    try:
        measured = write_bandwidth(store)
    except DrainfsmError as problem:
        yield error(
            "store bandwidth",
            f"{size(PROBE_BYTES)} cannot be written: {problem}",
            why="no save would succeed",
            fix="check quota and rights",
        )
        return
    assumed = setup.allowances.store_bytes_per_s
    if measured * setup.node_count < assumed:
        yield warning(
            "store bandwidth",
            f"{size(measured)}/s from this node, {setup.node_count} node(s); the rule counts "
            f"on {size(assumed)}/s until a save is on record",
            why="the first drain may begin a save that does not fit, and give it up",
            fix=f"drainfsm run --store-bytes-per-s {measured * setup.node_count} …",
        )
    else:
        yield right("store bandwidth", f"{size(measured)}/s from this node")
