"""Frames: four bytes of length, big-endian, and one msgpack message. No I/O but ``sendall``."""

from __future__ import annotations

import operator
import socket
import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from drainfsm.core.foreign import UNREADABLE
from drainfsm.errors import ProtocolError

FRAME_BYTES_MAX = 64 << 20
"""A rank's list of files is the largest message: half a million files at 120 bytes each."""

HANDSHAKE_BYTES_MAX = 4 << 10
"""Limit until a peer has shown that it knows the job token."""

HEADER = struct.Struct(">I")
_UCRED = struct.Struct("3i")
"""``struct ucred``: pid, uid, gid (unix(7))."""

M = TypeVar("M")
_encoder = msgspec.msgpack.Encoder(enc_hook=operator.index)
"""A script may count its steps in numbers of numpy or torch."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Pid and uid of who is at the other end of a Unix socket (of a server: who listens). The pid
    is 0 where it cannot be seen from here."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(data)
    return pid, uid


def encode_frame(message: msgspec.Struct) -> bytes:
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:  # text that a script has from a file name that is not UTF-8
        body = _encoder.encode(_encodable(msgspec.to_builtins(message, enc_hook=operator.index)))
    if len(body) > FRAME_BYTES_MAX:
        raise ProtocolError(f"a {type(message).__name__} of {len(body)} bytes is too large to send")
    return HEADER.pack(len(body)) + body


def _encodable(value: Any) -> Any:
    """Lone surrogates are escaped."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {name: _encodable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(inner) for inner in value]
    return value


class Codec(Generic[M]):
    """Decodes the messages that one side of a connection may send."""

    def __init__(self, union: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)

    def decode(self, body: bytes | memoryview) -> M:
        """Raises: ProtocolError: no message that this peer may send."""
        try:
            return self._decoder.decode(body)
        except UNREADABLE as error:
            raise ProtocolError(f"a frame cannot be read: {error}") from error


def body_length(header: bytes, *, bytes_max: int = FRAME_BYTES_MAX) -> int:
    """Raises: ProtocolError: the announced length is more than the peer may send."""
    (length,) = HEADER.unpack(header)
    if length > bytes_max:
        raise ProtocolError(
            f"a frame of {length} bytes is announced; at most {bytes_max} are taken"
        )
    return int(length)


class FrameBuffer(Generic[M]):
    """Cuts a stream of bytes into messages, for readers that hold a plain socket."""

    def __init__(self, codec: Codec[M]) -> None:
        self._codec = codec
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Raises: ProtocolError."""
        self._pending += data
        while len(self._pending) >= HEADER.size:
            end = HEADER.size + body_length(bytes(self._pending[: HEADER.size]))
            if len(self._pending) < end:
                return
            body = bytes(self._pending[HEADER.size : end])
            del self._pending[:end]
            yield self._codec.decode(body)


def receive(connection: socket.socket, codec: Codec[M]) -> M:
    """One message from a blocking socket.

    Raises:
        ProtocolError: the peer closed, or sent an invalid frame.
    """
    header = _exactly(connection, HEADER.size)
    return codec.decode(_exactly(connection, body_length(header)))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ProtocolError("the peer closed the connection")
        data += piece
    return bytes(data)
