"""Frames over asyncio streams."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from drainfsm.runtime.wire.frames import FRAME_BYTES_MAX, HEADER, Codec, body_length, encode_frame

M = TypeVar("M")

UNSENT_BYTES_MAX = 256 << 20
"""A peer that lets this much pile up has stopped reading: the connection is dropped."""


async def read_message(
    reader: asyncio.StreamReader, codec: Codec[M], *, bytes_max: int = FRAME_BYTES_MAX
) -> M | None:
    """The next message; None: the peer is gone.

    Raises:
        ProtocolError: it sent an invalid frame.
    """
    try:
        header = await reader.readexactly(HEADER.size)
        body = await reader.readexactly(body_length(header, bytes_max=bytes_max))
    except (asyncio.IncompleteReadError, ConnectionError, OSError):
        return None
    return codec.decode(body)


def write_message(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    """Queue the message; a peer that is gone, or has stopped reading, loses it."""
    if writer.is_closing():
        return
    transport = writer.transport
    if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
        transport.abort()
        return
    writer.write(encode_frame(message))
