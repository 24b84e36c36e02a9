"""An adapter of your own: a file says until when the machine may be used, and drainfsm asks it.

    --source window:Window --cordon window:Window      (with this folder in PYTHONPATH)

An adapter is whatever it has the methods for. `watch` hears notices, `cordon` keeps other jobs
away, `left` is called when the job has gone. drainfsm.testing.check_adapter tests the rules.
"""

import asyncio
from datetime import datetime
from pathlib import Path

from drainfsm.adapter import (
    AdapterContext,
    Cause,
    Departure,
    Notice,
    NoticeClass,
    NoticeSink,
)  # fmt: skip


class Window:
    def __init__(self, context: AdapterContext) -> None:
        self._now = context.now_unix_ms
        self._file = Path(context.options["path"])  # DRAINFSM_ADAPTER_WINDOW_PATH

    async def watch(self, sink: NoticeSink) -> None:
        """Until it is cancelled. The same notice may be given again: its native_id is the same."""
        told = ""
        while True:
            try:
                text = self._file.read_text().strip() if self._file.exists() else ""
                if told not in ("", text):
                    sink.withdraw(source="window", native_id=told, reason=f"now {text!r}")
                if text:
                    ends_s = datetime.fromisoformat(text).timestamp()
                    sink.notice(Notice(
                        source="window", native_id=text, cause=Cause("window"),
                        notice_class=NoticeClass.SOFT,  # HARD: what is never taken back
                        deadline_unix_ms=round(ends_s * 1_000), received_unix_ms=self._now(),
                    ))  # fmt: skip
                told = text
                sink.recovered(source="window")
            except (OSError, ValueError) as error:  # not to know is not the same as "none"
                sink.unknown(source="window", since_unix_ms=self._now(), detail=str(error))
            await asyncio.sleep(0.2)

    async def cordon(self, nodes: tuple[str, ...], *, timeout_ms: int) -> str:
        """Returns a detail for the log; what it raises is recorded, and the drain goes on."""
        self._file.with_suffix(".cordoned").touch()
        return "no other job may come here"

    async def left(self, departure: Departure) -> str:
        """The job has left; `requeue` says whether it wants to come back."""
        self._file.with_suffix(".left").write_text(f"requeue {departure.requeue}\n")
        return "told the window"
