"""Where an agent keeps its sockets and what it tells other commands of the same user."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from drainfsm.core.foreign import UNREADABLE
from drainfsm.errors import ConfigError

UNIX_PATH_BYTES_MAX = 107
"""``sun_path`` holds 108 bytes with its closing zero (unix(7))."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json`` of a job: how other commands reach what runs now (or ran last)."""

    job_id: str
    epoch: int
    pid: int
    nats_url: str
    """Empty: no server. It may hold a token: the file is its owner's alone."""

    coordinator: str
    """HOST:PORT; empty with one node."""


def socket_dir() -> Path:
    """A short path that only this user can enter.

    Raises:
        ConfigError: somebody else owns it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    uid = os.getuid()
    path = Path(base) / "drainfsm"
    if not base or len(str(path)) > UNIX_PATH_BYTES_MAX - 40 or not Path(base).is_dir():
        path = Path("/tmp") / f"drainfsm-{uid}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if found.st_uid != uid or not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path} belongs to somebody else: remove it, or set XDG_RUNTIME_DIR")
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)
    return path


def _key(state_dir: Path, job: str) -> str:
    named = f"{state_dir.resolve()}\0{job}"
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def agent_socket(state_dir: Path, *, job: str, node_rank: int) -> Path:
    """This process's own socket."""
    return socket_dir() / f"{_key(state_dir, job)}-{node_rank}-{os.getpid()}.sock"


def _control_link(state_dir: Path, *, job: str, node_rank: int) -> Path:
    return socket_dir() / f"{_key(state_dir, job)}-{node_rank}.ctl"


@contextlib.contextmanager
def control_link(socket: Path, state_dir: Path, *, job: str, node_rank: int) -> Iterator[None]:
    """Make the socket the one that ``drainfsm notify`` finds: the newest agent takes over."""
    link = _control_link(state_dir, job=job, node_rank=node_rank)
    fresh = link.with_suffix(f".{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(socket)
    fresh.replace(link)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if link.readlink() == socket:
                link.unlink()


def control_links(state_dir: Path, *, job: str) -> list[Path]:
    """Of every agent of the job on this machine, by node rank."""
    found = socket_dir().glob(f"{_key(state_dir, job)}-*.ctl")
    return sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))


def run_info_path(state_dir: Path, job: str) -> Path:
    return state_dir / job / "run.json"


def write_run_info(state_dir: Path, info: RunInfo) -> None:
    path = run_info_path(state_dir, info.job_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".run-")
    with open(fd, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(info), indent=1) + b"\n")
    Path(name).replace(path)


def read_run_info(state_dir: Path, job: str) -> RunInfo | None:
    """None: no attempt of the job ever started with this state directory, or it is unreadable."""
    try:
        return msgspec.json.decode(run_info_path(state_dir, job).read_bytes(), type=RunInfo)
    except (OSError, *UNREADABLE):
        return None
