"""Host names to addresses without ever blocking the agent, or its exit, on a slow resolver."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading


class Resolver:
    """One host. At most one look-up runs at a time, in a daemon thread that nobody waits for.

    (``loop.getaddrinfo`` would use the loop's executor, and the loop waits for that when it ends.)
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._address: str | None = None
        self._lookup: asyncio.Future[str] | None = None
        with contextlib.suppress(ValueError):
            self._address = str(ipaddress.ip_address(host))

    async def address(self) -> str:
        """A numeric address; kept once found.

        Raises:
            OSError: the name cannot be resolved.
        """
        if self._address is None:
            if self._lookup is None or self._lookup.done():
                self._lookup = _start_lookup(self._host)
            self._address = await asyncio.shield(self._lookup)
        return self._address

    def forget(self) -> None:
        """The address did not answer: look a name up again before the next try."""
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(self._host)
            return
        self._address = None


def _start_lookup(host: str) -> asyncio.Future[str]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str] = loop.create_future()
    future.add_done_callback(_retrieve)

    def settle(address: str, error: OSError | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(address)
            else:
                future.set_exception(error)

    def look_up() -> None:
        address, failure = "", None
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            address = str(found[0][4][0])
        except OSError as error:
            failure = error
        except UnicodeError as error:  # a label that is empty or too long
            failure = OSError(f"{host!r} is not a host name: {error}")
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, address, failure)

    threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
    return future


def _retrieve(future: asyncio.Future[str]) -> None:
    """The caller may be gone: avoids "exception was never retrieved" then."""
    if not future.cancelled():
        future.exception()
