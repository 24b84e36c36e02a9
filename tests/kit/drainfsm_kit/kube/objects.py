"""The objects of a cluster: versions, history, and everybody who watches."""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

Json = dict[str, Any]


class Conflict(Exception):  # noqa: N818 - the API's own word
    """The version or the uid is not the one that was asked for."""


class Key(NamedTuple):
    resource: str
    namespace: str
    name: str


class Change(NamedTuple):
    version: int
    type: str
    key: Key
    object: Json


def written(unix_s: float) -> str:
    """Whole seconds, cut off, as ``metav1.Time`` is written."""
    return datetime.fromtimestamp(int(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Objects:
    """Every change has the next version. ``history`` is what a watch can still be served from."""

    def __init__(self, *, ahead_s: float = 0.0) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.ahead_s = ahead_s
        """How far this server's clock is ahead of ours."""

        self._version = 1_000
        self._objects: dict[Key, Json] = {}
        self._history: list[Change] = []
        self._compacted = self._version

    def now_unix_s(self) -> float:
        return time.time() + self.ahead_s

    @property
    def version(self) -> int:
        return self._version

    @property
    def compacted(self) -> int:
        """A watch from an older version than this is answered 410."""
        return self._compacted

    def compact(self) -> None:
        with self.changed:
            self._history.clear()
            self._compacted = self._version

    def get(self, key: Key) -> Json | None:
        with self.changed:
            found = self._objects.get(key)
            return None if found is None else copy.deepcopy(found)

    def every(self, resource: str, namespace: str = "") -> list[Json]:
        with self.changed:
            return [
                copy.deepcopy(found)
                for key, found in sorted(self._objects.items())
                if key.resource == resource and namespace in ("", key.namespace)
            ]

    def since(self, version: int) -> list[Change]:
        with self.changed:
            return [change for change in self._history if change.version > version]

    def create(self, key: Key, item: Json) -> Json:
        with self.changed:
            if key in self._objects:
                raise Conflict(f'{key.resource} "{key.name}" already exists')
            made = copy.deepcopy(item)
            metadata = made.setdefault("metadata", {})
            metadata.update(name=key.name, uid=str(uuid.uuid4()), generation=1)
            metadata["creationTimestamp"] = written(self.now_unix_s())
            if key.namespace:
                metadata["namespace"] = key.namespace
            return self._write("ADDED", key, made)

    def update(self, key: Key, change: Callable[[Json], None]) -> Json:
        """Raises: KeyError: there is no such object."""
        with self.changed:
            changed = copy.deepcopy(self._objects[key])
            change(changed)
            if changed == self._objects[key]:
                return changed
            return self._write("MODIFIED", key, changed)

    def remove(self, key: Key) -> Json:
        with self.changed:
            last = self._objects.pop(key)
            return self._note("DELETED", key, last)

    def _write(self, kind: str, key: Key, item: Json) -> Json:
        self._objects[key] = item
        return self._note(kind, key, item)

    def _note(self, kind: str, key: Key, item: Json) -> Json:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._history.append(Change(self._version, kind, key, copy.deepcopy(item)))
        self.changed.notify_all()
        return copy.deepcopy(item)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386. Strategic merge differs for lists with a merge key, which are merged by it here."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def selected(item: Json, fields: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    has = item["metadata"].get("labels", {})
    return all(_at(item, path) == value for path, value in fields.items()) and all(
        name in has and value in ("", has[name]) for name, value in labels.items()
    )


def _at(item: Json, path: str) -> str:
    found: Any = item
    for part in path.split("."):
        found = found.get(part, "") if isinstance(found, dict) else ""
    return str(found)


def selector_of(text: str) -> dict[str, str]:
    """``a=b,c==d,e``: of the last, that it is there."""
    return dict(_pairs(text))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, text.split(",")):
        name, _, value = part.replace("==", "=").partition("=")
        yield name.strip(), value.strip()
