"""Follows objects of the API server as long as the agent lives, whatever happens to watches.

A watch ends all the time: by its own time limit, by a proxy, by a server that restarts, by a
history that is compacted (410), or without a word. Where nothing was missed it goes on from the
last version; otherwise the objects are listed again, and what changed meanwhile is seen then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm_adapters.health import Health
from drainfsm_adapters.kubernetes_client import Api, RefusedError
from drainfsm_adapters.kubernetes_objects import dig, text
from drainfsm_adapters.metadata import NoAnswerError

PAUSE_S_MIN, PAUSE_S_MAX = 0.2, 5.0
"""Before the next try; doubles, with jitter. A notice may leave only 15 seconds."""

RETRY_AFTER_S_MAX = 10.0
SHORT_S = 1.0
"""A watch that ends sooner is not followed by the next one at once."""

GONE = 410
"""The version is older than the server's history."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One object, or those with a label."""

    path: str
    """Of the collection."""

    name: str = ""
    """Of the one object, which has to be there; empty: those that ``selector`` finds, if any."""

    selector: dict[str, str] = {}
    what: str
    """For messages: ``pod train/llm-0-abcde``."""

    @property
    def query(self) -> dict[str, str]:
        """What the server is asked to filter by."""
        return self.selector or {"fieldSelector": f"metadata.name={self.name}"}


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: dict[str, Any]


class _List(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]
    items: list[dict[str, Any]] | None = None


class Watch:
    """``seen`` is called for every version of an object, ``gone`` at its end, with its name and its
    last version, if that is known. Neither may block."""

    def __init__(
        self,
        api: Api,
        target: Target,
        *,
        seen: Callable[[dict[str, Any]], None],
        gone: Callable[[str, dict[str, Any] | None], None],
        health: Health,
        watch_s: float,
    ) -> None:
        self._api = api
        self._target = target
        self._seen = seen
        self._gone = gone
        self._health = health
        self._watch_s = watch_s
        self._there: set[str] = set()
        """Names of what was seen, and is not yet gone."""

        self._known = not target.name
        """It was seen, ever, or need not be there."""

        self._answered_unix_ms = api.now_unix_ms()

    async def follow(self) -> None:
        """Until cancelled."""
        pause_s = PAUSE_S_MIN
        version = ""
        while True:
            asked_s = 0.0
            try:
                version = version or await self._list()
                version = await self._watch(version)
                pause_s = PAUSE_S_MIN
                continue
            except RefusedError as error:
                asked_s = min(error.retry_after_s, RETRY_AFTER_S_MAX)
                if error.status != GONE or not version:
                    self._silent(str(error))
            except NoAnswerError as error:
                self._silent(str(error))
            except Exception as error:  # a fault of ours in reading must not end the watch
                self._silent(f"fault in the adapter: {error!r}")
            version = ""
            await asyncio.sleep(asked_s + pause_s * (0.5 + random.random() / 2))
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _list(self) -> str:
        reply = await self._api.request("GET", self._target.path, query=self._target.query)
        found = reply.json(_List)
        own = [item for item in found.items or [] if self._is_own(item)]
        gone = self._there - {text(item, "metadata", "name") for item in own}
        for item in own:
            self._see(item)
        for name in gone:
            self._end(name, None)
        if not self._known:
            raise NoAnswerError(f"there is no {self._target.what} in this cluster")
        return _version(found.metadata)

    async def _watch(self, version: str) -> str:
        """The version to go on from after a clean end."""
        limit_s = max(1, round(self._watch_s * (0.8 + 0.2 * random.random())))
        query = {
            **self._target.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(limit_s),
        }
        began = asyncio.get_running_loop().time()
        silence_s = limit_s + PAUSE_S_MAX
        async with self._api.stream(self._target.path, query=query, silence_s=silence_s) as lines:
            self._answered()
            async for line in lines:
                version = self._on_event(line) or version
                self._answered()
        if asyncio.get_running_loop().time() - began < SHORT_S:
            await asyncio.sleep(SHORT_S * (0.5 + random.random()))
        self._answered()
        return version

    def _on_event(self, line: bytes) -> str:
        event = read_json(line, _Event, _garbage)
        if event.type == "ERROR":
            code = dig(event.object, "code")
            raise RefusedError(
                text(event.object, "message")[:400] or "the watch failed",
                status=code if isinstance(code, int) else 0,
                reason=text(event.object, "reason"),
            )
        if event.type in ("ADDED", "MODIFIED") and self._is_own(event.object):
            self._see(event.object)
        elif event.type == "DELETED" and self._is_own(event.object):
            self._known = True
            self._end(text(event.object, "metadata", "name"), event.object)
        return _version(dig(event.object, "metadata"))

    def _see(self, item: dict[str, Any]) -> None:
        self._known = True
        self._there.add(text(item, "metadata", "name"))
        self._seen(item)

    def _end(self, name: str, last: dict[str, Any] | None) -> None:
        self._there.discard(name)
        self._gone(name, last)

    def _is_own(self, item: dict[str, Any]) -> bool:
        """Checked here, however the server interprets the filter."""
        return not self._target.name or text(item, "metadata", "name") == self._target.name

    def _answered(self) -> None:
        self._answered_unix_ms = self._api.now_unix_ms()
        self._health.answered()

    def _silent(self, detail: str) -> None:
        self._health.silent(
            detail=f"{self._target.what}: {detail}",
            since_unix_ms=self._answered_unix_ms,
            now_unix_ms=self._api.now_unix_ms(),
        )


def _garbage(reason: str) -> NoAnswerError:
    return NoAnswerError(f"garbage in a watch: {reason}"[:200])


def _version(metadata: object) -> str:
    return text(metadata, "resourceVersion")
