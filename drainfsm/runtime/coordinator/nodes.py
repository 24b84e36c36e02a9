"""The nodes of an attempt as the coordinator reaches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from drainfsm.runtime.clock import RunningTime
from drainfsm.runtime.wire import node_messages as n

Send = Callable[[n.ToNode], None]


class Nodes:
    """Who has joined, how to reach them, and when they were last heard."""

    def __init__(self, *, node_count: int, heartbeat_s: float) -> None:
        self.node_count = node_count
        self._sends: dict[int, Send] = {}
        self._heard_ms: dict[int, int] = {}
        self._time = RunningTime(pause_ms=round(2_000 * heartbeat_s))

    def join(self, node: int, send: Send) -> None:
        self._sends[node] = send
        self._heard_ms[node] = self._time.now_ms()

    def leave(self, node: int) -> None:
        self._sends.pop(node, None)

    @property
    def joined(self) -> tuple[int, ...]:
        return tuple(sorted(self._sends))

    def heard(self, node: int) -> None:
        self._heard_ms[node] = self._time.now_ms()

    def silent_for_ms(self, node: int) -> int:
        """Counts only time in which we could have heard it. Call it once a heartbeat."""
        return self._time.now_ms() - self._heard_ms[node]

    def tell(self, message: n.ToNode, nodes: Iterable[int] | None = None) -> None:
        """Send to all nodes, or these. One that has gone is skipped: its loss is reported
        elsewhere."""
        for node in self.joined if nodes is None else nodes:
            if (send := self._sends.get(node)) is not None:
                send(message)
