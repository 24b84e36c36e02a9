"""The reader thread of a rank: whatever becomes of its connection is noticed."""

from __future__ import annotations

import os
import socket
import threading

from drainfsm.runtime.rank.inbox import Inbox
from drainfsm.runtime.wire import rank_messages as m


class Reactions:
    def __init__(self) -> None:
        self.gone = threading.Event()
        self.sampled = threading.Event()

    def on_order(self, order: m.ToRank) -> None:
        pass

    def sample(self) -> None:
        self.sampled.set()

    def on_agent_gone(self) -> None:
        self.gone.set()


def test_a_script_that_closes_all_that_is_open_does_not_train_on_unled() -> None:
    """As ``os.closerange(3, …)`` does. The thread died of it, and the rank was deaf for ever."""
    ours, theirs = socket.socketpair()
    with theirs:
        reactions = Reactions()
        Inbox(ours, reactions).start()
        os.close(ours.fileno())
        assert reactions.gone.wait(60)


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
