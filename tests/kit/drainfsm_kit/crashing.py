"""Points at which a process can be killed: before and after every durable effect.

``install`` wraps the calls by which anything becomes durable (fsync, link, rename, mkdir, unlink)
and the messages by which a rank reports. Each call is two points, named after what it touches.
With ``CRASH_TRACE`` the points that a run passes are written down; with ``CRASH_POINT`` the
process that reaches that point for the first time is killed with SIGKILL, alone or with the whole
job. The points are armed by the first notice that is about to be recorded.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drainfsm_kit.marks import MARK, pids_with

POINT = "CRASH_POINT"
"""Environment variable: the point to be killed at."""

TRACE = "CRASH_TRACE"
"""Environment variable: file that gets a line a point."""

SCOPE = "CRASH_SCOPE"
"""Environment variable: ``process`` (default) or ``job``."""

ARMED = "CRASH_ARMED"
"""Environment variable: file whose existence arms the points, in every process of the job."""

FILE_CALLS = ("fsync", "fdatasync", "link", "replace", "rename", "mkdir", "unlink")
TRIGGER = r"append:notice_received"
KEPT = ("commits", "generations", "requeue", "store")
"""Directories of the store: what is touched elsewhere is no point."""

_VARYING = ((r"[0-9a-f]{32}", "tmp"), (r"s\d{12}", "step"), (r"^\d{8}\.json", "slot.json"))


class Crasher:
    """What is armed in this process."""

    def __init__(self, who: str, variables: dict[str, str]) -> None:
        self._who = who
        self._wanted = variables.get(POINT, "")
        self._trace = variables.get(TRACE, "")
        self._armed = Path(variables[ARMED])
        self._scope = variables.get(SCOPE, "process")
        self._inside = threading.local()

    def wrap(
        self,
        name: str,
        call: Callable[..., Any],
        describe: Callable[[tuple[Any, ...]], str],
    ) -> Callable[..., Any]:
        def instrumented(*arguments: Any, **named: Any) -> Any:
            if getattr(self._inside, "busy", False):
                return call(*arguments, **named)
            self._inside.busy = True
            try:
                what = describe(arguments)
                self._reached(f"{self._who}:{name}:{what}:before" if what else "")
            finally:
                self._inside.busy = False
            result = call(*arguments, **named)
            self._inside.busy = True
            try:
                self._reached(f"{self._who}:{name}:{what}:after" if what else "")
            finally:
                self._inside.busy = False
            return result

        return instrumented

    def _reached(self, point: str) -> None:
        if not point:
            return
        if not self._armed.exists():
            if not re.search(TRIGGER, point):
                return
            self._armed.touch()
        if self._trace:
            with open(self._trace, "a") as trace:
                trace.write(point + "\n")
        if point == self._wanted:
            hit_file(self._armed).touch()
            if self._scope == "job":
                _kill_job()
            os.kill(os.getpid(), signal.SIGKILL)


def hit_file(armed: Path) -> Path:
    """Exists once a process was killed."""
    return armed.with_suffix(".hit")


def _describe(arguments: tuple[Any, ...]) -> str:
    """What the call touches in the store, without what differs from run to run; or nothing."""
    first = arguments[0] if arguments else ""
    text = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
    if len(arguments) > 1 and isinstance(arguments[1], str | os.PathLike):
        text = str(arguments[1])  # what a link or a rename creates
    parts = list(Path(text).parts)
    if not any(kept in parts for kept in KEPT):
        return ""
    return _without_what_varies(parts[max(parts.index(kept) for kept in KEPT if kept in parts) :])


def _without_what_varies(named: list[str]) -> str:
    for pattern, name in _VARYING:
        named = [re.sub(pattern, name, part) for part in named]
    return "/".join(named)


def install(who: str) -> None:
    """Arm this process, if the environment asks for it. Call it before the store is imported."""
    variables = dict(os.environ)
    if ARMED not in variables:
        return
    crasher = Crasher(who, variables)
    for name in FILE_CALLS:
        setattr(os, name, crasher.wrap(name, getattr(os, name), _describe))
    from drainfsm.log.journal import Journal
    from drainfsm.runtime.rank.session import RankSession

    wrapped: list[tuple[type, str, Callable[[tuple[Any, ...]], str]]] = [
        (RankSession, "report_staged", _generation),
        (RankSession, "report_durable", _generation),
        (Journal, "append", _kinds),
    ]
    if importlib.util.find_spec("obstore") is not None:
        from drainfsm.store.objects import ObjectsStore
        from drainfsm.store.streams import Upload

        wrapped += [
            (ObjectsStore, "put_if_absent", _object),
            (ObjectsStore, "put", _object),
            (Upload, "write", _upload),
            (Upload, "finish", _upload),
        ]
    for owner, name, describe in wrapped:
        setattr(owner, name, crasher.wrap(name, getattr(owner, name), describe))


def _object(arguments: tuple[Any, ...]) -> str:
    """Of a call to the object store: the object's name."""
    return _without_what_varies(str(arguments[1]).split("/"))


def _upload(arguments: tuple[Any, ...]) -> str:
    return _without_what_varies(str(arguments[0]._path).split("/"))


def _generation(arguments: tuple[Any, ...]) -> str:
    return re.sub(r"s\d{12}", "step", str(arguments[1]))


def _kinds(arguments: tuple[Any, ...]) -> str:
    """Of ``Journal.append``: what the records say."""
    from drainfsm.core.events import kind_of

    return "+".join(kind_of(event) for record in arguments[1:] for event in record.events)


def _kill_job() -> None:
    """SIGKILL every process of the job but this one."""
    for pid in pids_with(f"\0{MARK}={os.environ[MARK]}\0"):
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
