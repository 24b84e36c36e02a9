"""Background tasks of one owner: kept alive, cancelled together, never failing silently."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            told = "".join(traceback.format_exception(error))
            self._warn(f"a bug, please report it: {told}")

    async def cancel(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
