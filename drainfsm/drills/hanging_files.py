"""A directory that is seen through a file system of our own, which can be made to hang (whoever
writes waits until the process is killed, as on a network file system whose server is away) or slow.

``python -m drainfsm.drills.hanging_files BEHIND POINT`` speaks the kernel's FUSE protocol (7.31).
It is started in a namespace of mounts, and obeys ``hang``, ``slow BYTES_PER_S FSYNC_S`` and
``go on`` on its standard input.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

DEVICE = "/dev/fuse"
FORMAT_IN = struct.Struct("<IIQQIIII")
"""Length, opcode, number, node, uid, gid, pid, padding."""

FORMAT_OUT = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<6Q10I")
ENTRY = struct.Struct("<4Q2I")
READ_WRITE = struct.Struct("<QQIIQII")
MAX_WRITE = 128 << 10
MINOR = 31
THREADS = 24
"""Requests that may hang at once, and some more that are answered meanwhile."""

NOSUID_NODEV = 2 | 4
ROOT = 1
WRITE, FSYNCS = 16, (20, 30)


class Pace(NamedTuple):
    """Of a slow disk. One write after the other, whoever writes."""

    bytes_per_s: float
    fsync_s: float


class FileRequest(NamedTuple):
    number: int
    node: int
    body: bytes


class FileNumbers:
    """Files by the numbers that the kernel knows them by. A number is given once, and kept."""

    def __init__(self, behind: str) -> None:
        self._paths = {ROOT: behind}
        self._numbers = {behind: ROOT}
        self._lock = threading.Lock()

    def path(self, node: int) -> str:
        with self._lock:
            return self._paths[node]

    def number(self, path: str) -> int:
        with self._lock:
            if path not in self._numbers:
                self._numbers[path] = number = len(self._paths) + 1
                self._paths[number] = path
            return self._numbers[path]

    def moved(self, old: str, new: str) -> None:
        """With everything below it."""
        with self._lock:
            for number, path in self._paths.items():
                if path == old or path.startswith(f"{old}/"):
                    self._numbers.pop(path, None)
                    self._paths[number] = new + path[len(old) :]
            self._numbers.update({path: number for number, path in self._paths.items()})

    def gone(self, path: str) -> None:
        """What comes there next is another file."""
        with self._lock:
            self._numbers.pop(path, None)


class HangingFiles:
    """The directory behind, and whether it hangs or is slow."""

    def __init__(self, device: int, behind: str) -> None:
        self._device = device
        self._nodes = FileNumbers(behind)
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._pace: Pace | None = None
        self._busy_until = 0.0
        self._interrupted: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._answers: dict[int, Callable[[FileRequest], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 9: self._mkdir, 10: self._unlink,
            11: self._rmdir, 12: self._rename, 13: self._link, 14: self._open, 15: self._read,
            16: self._write, 17: self._statfs, 18: self._release, 20: self._fsync, 25: _nothing,
            26: self._init, 27: self._opendir, 28: self._readdir, 29: _nothing, 30: self._fsyncdir,
            35: self._create, 45: self._rename2,
        }  # fmt: skip
        self._writes = frozenset({4, 9, 10, 11, 12, 13, 16, 20, 30, 35, 45})

    def hang(self) -> None:
        """Who writes waits."""
        self._goes_on.clear()

    def slow(self, pace: Pace) -> None:
        """Every byte and every fsync takes its time, and ends."""
        self._pace = pace

    def go_on(self) -> None:
        """Those who waited, and whoever comes."""
        self._pace = None
        self._goes_on.set()

    def serve(self) -> None:
        """Until it is unmounted."""
        while True:
            try:
                data = os.read(self._device, MAX_WRITE + 4_096)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue  # it was interrupted before it was read
                return
            _, opcode, number, node, *_ = FORMAT_IN.unpack_from(data)
            self._serve(opcode, FileRequest(number, node, data[FORMAT_IN.size :]))

    def _serve(self, opcode: int, request: FileRequest) -> None:
        if opcode in (2, 42):  # forget, of one or many: no answer
            return
        if opcode == 36:
            self._interrupt(struct.unpack_from("<Q", request.body)[0])
            return
        code, body = 0, b""
        try:
            if opcode in self._writes:
                self._wait(request.number, self._free_at(opcode, len(request.body)))
            answer = self._answers.get(opcode)
            if answer is None:
                code = errno.ENOSYS
            else:
                body = answer(request)
        except OSError as error:
            code = error.errno or errno.EIO
        except KeyError:
            code = errno.ESTALE
        head = FORMAT_OUT.pack(FORMAT_OUT.size + len(body), -code, request.number)
        try:
            os.write(self._device, head + body)
        except OSError:  # nobody waits for it any more
            return

    def _free_at(self, opcode: int, byte_count: int) -> float:
        """When a slow disk has done it, behind all that it was given before (monotonic)."""
        pace = self._pace
        if pace is None or opcode not in (WRITE, *FSYNCS):
            return 0.0
        takes_s = byte_count / pace.bytes_per_s if opcode == WRITE else pace.fsync_s
        with self._lock:
            self._busy_until = max(self._busy_until, time.monotonic()) + takes_s
            return self._busy_until

    def _wait(self, number: int, free_at: float) -> None:
        """While it hangs, and until a slow disk is free. Raises: InterruptedError: whoever waits is
        killed."""

        def may_go() -> bool:
            slow = self._pace is not None and time.monotonic() < free_at
            return self._goes_on.is_set() and not slow

        if may_go():
            return
        with self._lock:
            mine = self._interrupted[number] = threading.Event()
        try:
            while not may_go():
                if mine.wait(0.02):
                    raise InterruptedError(errno.EINTR, "killed")
        finally:
            with self._lock:
                del self._interrupted[number]

    def _interrupt(self, number: int) -> None:
        with self._lock:
            if (waits := self._interrupted.get(number)) is not None:
                waits.set()

    # --- requests -------------------------------------------------------------------------------

    def _init(self, request: FileRequest) -> bytes:
        major, _, readahead, _ = struct.unpack_from("<IIII", request.body)
        head = struct.pack("<IIIIHHII", major, MINOR, readahead, 0, 64, 48, MAX_WRITE, 1)
        return head + bytes(64 - len(head))

    def _below(self, node: int, name: bytes) -> str:
        return f"{self._nodes.path(node)}/{os.fsdecode(name.partition(bytes(1))[0])}"

    def _entry(self, path: str) -> bytes:
        found = os.lstat(path)
        return ENTRY.pack(self._nodes.number(path), 0, 0, 0, 0, 0) + _attributes(found)

    def _lookup(self, request: FileRequest) -> bytes:
        return self._entry(self._below(request.node, request.body))

    def _getattr(self, request: FileRequest) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + _attributes(os.lstat(self._nodes.path(request.node)))

    def _setattr(self, request: FileRequest) -> bytes:
        valid, _, _, size, _, atime, mtime, _ = struct.unpack_from("<IIQQQQQQ", request.body)
        mode = struct.unpack_from("<I", request.body, 68)[0]
        path = self._nodes.path(request.node)
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 8:
            os.truncate(path, size)
        if valid & 0x30:
            os.utime(path, (atime, mtime))
        return self._getattr(request)

    def _mkdir(self, request: FileRequest) -> bytes:
        mode, umask = struct.unpack_from("<II", request.body)
        path = self._below(request.node, request.body[8:])
        os.mkdir(path, mode & ~umask)
        return self._entry(path)

    def _unlink(self, request: FileRequest) -> bytes:
        path = self._below(request.node, request.body)
        os.unlink(path)
        self._nodes.gone(path)
        return b""

    def _rmdir(self, request: FileRequest) -> bytes:
        path = self._below(request.node, request.body)
        os.rmdir(path)
        self._nodes.gone(path)
        return b""

    def _rename(self, request: FileRequest, skip: int = 8) -> bytes:
        (directory,) = struct.unpack_from("<Q", request.body)
        old, new, _ = request.body[skip:].split(bytes(1), 2)
        source, target = self._below(request.node, old), self._below(directory, new)
        os.rename(source, target)
        self._nodes.gone(target)
        self._nodes.moved(source, target)
        return b""

    def _rename2(self, request: FileRequest) -> bytes:
        if struct.unpack_from("<QI", request.body)[1]:
            raise OSError(errno.EINVAL, "flags")
        return self._rename(request, skip=16)

    def _link(self, request: FileRequest) -> bytes:
        (old,) = struct.unpack_from("<Q", request.body)
        path = self._below(request.node, request.body[8:])
        os.link(self._nodes.path(old), path)
        return self._entry(path)

    def _open(self, request: FileRequest) -> bytes:
        flags = struct.unpack_from("<I", request.body)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOCTTY)
        return struct.pack("<QII", os.open(self._nodes.path(request.node), flags), 0, 0)

    def _create(self, request: FileRequest) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("<IIII", request.body)
        path = self._below(request.node, request.body[16:])
        handle = os.open(path, flags | os.O_CREAT, mode & ~umask)
        return self._entry(path) + struct.pack("<QII", handle, 0, 0)

    def _read(self, request: FileRequest) -> bytes:
        handle, offset, size, *_ = READ_WRITE.unpack_from(request.body)
        return os.pread(handle, size, offset)

    def _write(self, request: FileRequest) -> bytes:
        handle, offset, size, *_ = READ_WRITE.unpack_from(request.body)
        data = request.body[READ_WRITE.size : READ_WRITE.size + size]
        return struct.pack("<II", os.pwrite(handle, data, offset), 0)

    def _release(self, request: FileRequest) -> bytes:
        os.close(struct.unpack_from("<Q", request.body)[0])
        return b""

    def _fsync(self, request: FileRequest) -> bytes:
        os.fsync(struct.unpack_from("<Q", request.body)[0])
        return b""

    def _fsyncdir(self, request: FileRequest) -> bytes:
        handle = os.open(self._nodes.path(request.node), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return b""

    def _opendir(self, request: FileRequest) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _readdir(self, request: FileRequest) -> bytes:
        _, offset, size, *_ = READ_WRITE.unpack_from(request.body)
        names, found = sorted(os.listdir(self._nodes.path(request.node))), b""
        for at, name in enumerate(names[offset:], start=offset + 1):
            encoded = os.fsencode(name)
            one = struct.pack("<QQII", at, at, len(encoded), 0) + encoded
            one += bytes(-len(one) % 8)
            if len(found) + len(one) > size:
                break
            found += one
        return found

    def _statfs(self, request: FileRequest) -> bytes:
        found = os.statvfs(self._nodes.path(ROOT))
        counts = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("<5Q4I24s", *counts, found.f_bsize, 255, found.f_frsize, 0, bytes(24))


def _nothing(request: FileRequest) -> bytes:
    return b""


def _attributes(found: os.stat_result) -> bytes:
    times = [int(at) for at in (found.st_atime, found.st_mtime, found.st_ctime)]
    parts = [at % 1_000_000_000 for at in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
    owner = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, found.st_blksize, 0)
    return ATTRIBUTES.pack(found.st_ino, found.st_size, found.st_blocks, *times, *parts, *owner)


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    behind, point = sys.argv[1:]
    try:
        device = os.open(DEVICE, os.O_RDWR)
    except OSError as error:
        raise SystemExit(f"{DEVICE}: {error.strerror}") from error
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    names = (b"drainfsm-drill", os.fsencode(point), b"fuse", NOSUID_NODEV, options.encode())
    if libc.mount(*names) != 0:
        raise SystemExit(f"mount: {os.strerror(ctypes.get_errno())}")
    files = HangingFiles(device, behind)
    for _ in range(THREADS):
        threading.Thread(target=files.serve, daemon=True).start()
    _say("ready")
    for line in sys.stdin:
        order = line.split()
        if order[0] == "slow":
            files.slow(Pace(*map(float, order[1:])))
        elif order[0] == "hang":
            files.hang()
        else:
            files.go_on()
        _say("done")


if __name__ == "__main__":
    main()
