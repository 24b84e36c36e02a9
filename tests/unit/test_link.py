"""The link around nats-py: what it must do where nats-py cannot be made to do it on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from drainfsm.log.link import Link
from drainfsm.log.server import public
from drainfsm.log.stream import PubAck


async def loses_cancellation(*_: object, **__: object) -> None:
    """As ``asyncio.wait_for`` does on Python 3.11, if the result comes in the same turn."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return


def assert_cancelled(scene: Coroutine[Any, Any, object]) -> None:
    async def run() -> None:
        task = asyncio.create_task(scene)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_cancelled_connect_is_cancelled_even_if_nats_py_missed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link("nats://127.0.0.1:1")
    monkeypatch.setattr(link.client, "connect", loses_cancellation)
    assert_cancelled(link.open(timeout_s=60))


def test_a_cancelled_call_is_cancelled_even_if_nats_py_missed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link("nats://127.0.0.1:1")
    monkeypatch.setattr(type(link), "connected", True)
    monkeypatch.setattr(link.client, "request", loses_cancellation)
    assert_cancelled(link.call("x", b"", PubAck))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("nats://t0ken@host:4222", "nats://host:4222"),
        ("tls://me:pass@a:1,tls://me:pass@b:2", "tls://a:1,tls://b:2"),
        ("me:pass@host", "host"),
    ],
)
def test_a_url_is_shown_without_its_credentials(url: str, shown: str) -> None:
    assert public(url) == shown
