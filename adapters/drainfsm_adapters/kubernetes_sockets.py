"""Connections to the API server: kept alive by the kernel, and closed on cancellation.

httpcore leaves a connection open that is cancelled in its TLS handshake, which a watch that is
cancelled, or a call that runs out of time, may well be.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import Any

import anyio
import httpcore2
import httpx2

SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000),
)
"""A peer that vanished is noticed after 19 s, at no cost for the API server, and a
load balancer sees a connection that is in use."""

IDLE_S = 30.0


class _Stream(httpcore2.AsyncNetworkStream):
    """One connection before TLS."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore2.AnyIOBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(
            await super().connect_tcp(host, port, timeout, local_address, socket_options)
        )


def transport_to(verify: ssl.SSLContext) -> httpx2.AsyncHTTPTransport:
    """HTTP/1.1, without a proxy."""
    transport = httpx2.AsyncHTTPTransport(verify=verify, trust_env=False)
    transport._pool = httpcore2.AsyncConnectionPool(
        ssl_context=verify,
        keepalive_expiry=IDLE_S,
        http1=True,
        http2=False,
        socket_options=SOCKET_OPTIONS,
        network_backend=_Backend(),
    )
    return transport
