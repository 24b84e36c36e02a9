"""The reader thread of a rank: whatever becomes of its connection is noticed."""

from __future__ import annotations

import os
import socket
import threading

from drainfsm.runtime.rank.inbox import Inbox
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import encode_frame


class Reactions:
    def __init__(self) -> None:
        self.gone = threading.Event()
        self.sampled = threading.Event()

        self.why = ""

    def on_order(self, order: m.ToRank) -> None:
        if isinstance(order, m.Refused):
            raise TypeError(order.reason)

    def sample(self) -> None:
        self.sampled.set()

    def on_agent_gone(self, why: str) -> None:
        self.why = why
        self.gone.set()


def test_a_script_that_closes_all_that_is_open_does_not_train_on_unled() -> None:
    """As ``os.closerange(3, …)`` does. The thread died of it, and the rank was deaf for ever."""
    ours, theirs = socket.socketpair()
    with theirs:
        reactions = Reactions()
        Inbox(ours, reactions).start()
        os.close(ours.fileno())
        assert reactions.gone.wait(60)


def test_whatever_ends_the_thread_the_rank_is_not_deaf_for_ever() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        reactions = Reactions()
        Inbox(ours, reactions).start()
        theirs.sendall(encode_frame(m.Refused(reason="not an order")))
        assert reactions.gone.wait(60)
        assert "TypeError('not an order')" in reactions.why


def test_an_agent_that_is_silent_has_the_step_looked_at_and_is_left_without_a_word() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        reactions = Reactions()
        inbox = Inbox(ours, reactions)
        inbox.start()
        assert reactions.sampled.wait(60)
        inbox.stop()
        inbox._thread.join()
        assert not reactions.gone.is_set()
