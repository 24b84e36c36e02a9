"""Where an agent keeps its sockets and what it tells other commands of the same user."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
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

    websocket_url: str = ""
    """Of the same server, for browsers; empty: only an embedded one has it."""

    stream: str = ""
    subjects: str = ""
    """What the job's log is there: of every attempt, a message a record."""

    ends_with_attempt: bool = False
    """The server is an embedded one: the next attempt has another address, and writes it here."""


def socket_dir() -> Path:
    """A short path that only this user can enter.

    Raises:
        ConfigError: somebody else owns it.
    """
    uid = os.getuid()
    path = _short(uid)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"no place for the agent's socket: {path}: {error.strerror}; set XDG_RUNTIME_DIR or "
            "TMPDIR to a short path of your own"
        ) from error
    if not _is_own(path, uid):
        raise ConfigError(f"{path} belongs to somebody else: remove it, or set XDG_RUNTIME_DIR")
    if stat.S_IMODE(path.lstat().st_mode) != 0o700:
        path.chmod(0o700)
    return path


def _short(uid: int, environ: Mapping[str, str] = os.environ) -> Path:
    """Where it is. A directory that is somebody else's (``su`` and ``sudo`` leave their caller's in
    the environment), cannot be written, or is too long for a socket, is passed over. ``TMPDIR``
    comes last: a scheduler's is a job's own, and commands beside the job do not know it."""
    for path in _candidates(uid, environ):
        if len(str(path)) <= UNIX_PATH_BYTES_MAX - 40 and _usable(path.parent, uid):
            return path
    return Path("/tmp") / f"drainfsm-{uid}"


def _candidates(uid: int, environ: Mapping[str, str]) -> list[Path]:
    bases = (
        (environ.get("XDG_RUNTIME_DIR", ""), "drainfsm"),
        ("/tmp", f"drainfsm-{uid}"),
        (environ.get("TMPDIR", ""), f"drainfsm-{uid}"),
    )
    return [Path(base) / name for base, name in bases if base]


def _socket_dirs(uid: int, environ: Mapping[str, str]) -> list[Path]:
    """Where sockets of this user may be, also of agents that were started with other variables: a
    service, a cron job or a container's hook has not those of a login. The nearest first."""
    login = Path("/run/user") / str(uid) / "drainfsm"
    paths = dict.fromkeys([*_candidates(uid, environ), login])
    return [path for path in paths if _is_own(path, uid)]


def _is_own(path: Path, uid: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return found.st_uid == uid and stat.S_ISDIR(found.st_mode)


def _usable(base: Path, uid: int) -> bool:
    try:
        found = base.stat()
    except OSError:
        return False
    shared = bool(found.st_mode & stat.S_ISVTX)
    return (
        stat.S_ISDIR(found.st_mode)
        and (shared or found.st_uid in (uid, 0))
        and (os.access(base, os.W_OK | os.X_OK))
    )


def _key(state_dir: Path, job: str) -> str:
    named = os.fsencode(f"{state_dir.resolve()}\0{job}")
    return hashlib.sha256(named).hexdigest()[:16]


def agent_socket(state_dir: Path, *, job: str, node_rank: int) -> Path:
    """This process's own socket."""
    return socket_dir() / f"{_key(state_dir, job)}-{node_rank}-{os.getpid()}.sock"


def sockets_of(pid: int, environ: Mapping[str, str]) -> list[Path]:
    """Of the agent that is that process, started with ``environ``, and of those that were killed
    when the number was theirs: what they leave is nobody's to remove."""
    folders = _socket_dirs(os.getuid(), environ)
    found = [path for folder in folders for path in folder.glob(f"*-{pid}.sock")]
    return [path for path in found if path.is_socket()]


def moved(socket: Path) -> list[Path]:
    """Where it may be since its folder was removed."""
    found = [folder / socket.name for folder in _socket_dirs(os.getuid(), os.environ)]
    return [path for path in found if path != socket and path.is_socket()]


def control_link_path(state_dir: Path, *, job: str, node_rank: int) -> Path:
    return socket_dir() / f"{_key(state_dir, job)}-{node_rank}.ctl"


@contextlib.contextmanager
def control_link(socket: Path, state_dir: Path, *, job: str, node_rank: int) -> Iterator[None]:
    """Make the socket the one that ``drainfsm notify`` finds: the newest agent takes over."""
    link = control_link_path(state_dir, job=job, node_rank=node_rank)
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
    """Sockets of every agent of the job on this machine, by node rank: this user's, and for root
    those of whom the state directory belongs to."""
    key, uid = _key(state_dir, job), os.getuid()
    folders = _socket_dirs(uid, os.environ)
    if uid == 0:  # an agent lets root in, too: a prolog, an administrator
        with contextlib.suppress(OSError):
            folders += _socket_dirs((state_dir / job).stat().st_uid, os.environ)
    found = [path for folder in dict.fromkeys(folders) for path in folder.glob(f"{key}-*.ctl")]
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
