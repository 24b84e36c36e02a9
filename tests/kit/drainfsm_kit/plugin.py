"""An adapter that is found by its entry point, as one that somebody else has written."""

from __future__ import annotations

import os
from pathlib import Path

ADAPTER = '''
import asyncio
from pathlib import Path
from drainfsm.core.notice import Notice, NoticeClass


class Adapter:
    """Hears what stands in ``notice-NODE`` (deadline, class, id), and writes down its acts."""

    def __init__(self, context):
        if context.options.get("fail"):
            raise RuntimeError("no such region")
        self.context = context
        self.directory = Path(context.options["directory"])

    async def watch(self, sink):
        node = self.context.node_rank
        while not (self.directory / f"notice-{node}").exists():
            await asyncio.sleep(0.02)
        words = (self.directory / f"notice-{node}").read_text().split()
        deadline, kind, name = [*words, "hard", "t"] if len(words) == 1 else words
        for _ in range(3):
            sink.notice(Notice(
                source="test", native_id=name, cause="maintenance", notice_class=NoticeClass(kind),
                deadline_unix_ms=int(deadline) or None,
                received_unix_ms=self.context.now_unix_ms(),
            ))
        await asyncio.Event().wait()

    async def cordon(self, nodes, *, timeout_ms):
        if (self.directory / "slow-cordon").exists():
            await asyncio.sleep(1000)
        (self.directory / f"cordoned-{self.context.node_rank}").touch()
        return "done"

    async def left(self, departure):
        said = f"{departure.requeue} {departure.timeout_ms} {' '.join(sorted(departure.left_for))}"
        (self.directory / f"left-{self.context.node_rank}").write_text(said)
        return ""
'''


def install(site: Path) -> dict[str, str]:
    """Install it as ``test`` into a directory of its own: the variables of processes that find it
    there."""
    info = site / "test_adapter-1.dist-info"
    info.mkdir(parents=True)
    (site / "test_adapter.py").write_text(ADAPTER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: test-adapter\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[drainfsm.adapters]\ntest = test_adapter:Adapter\n")
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    return {"PYTHONPATH": path}


def settings(directory: Path, **options: str) -> dict[str, object]:
    """Of an agent that hears it."""
    return {"source": ["test"], "adapters": {"test": {"directory": str(directory), **options}}}
