"""Frames: whole, in pieces, too long, and garbled."""

from __future__ import annotations

import asyncio
import struct

import pytest

from drainfsm.errors import ProtocolError
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import FRAME_BYTES_MAX, Codec, FrameBuffer, encode_frame
from drainfsm.runtime.wire.streams import read_message

RANKS: Codec[m.ToRank] = Codec(m.ToRank)


def test_messages_come_out_as_they_went_in_however_the_bytes_arrive() -> None:
    sent = [m.Hold(), m.Release(stop_step=7), m.Leave(at_step=None), m.Leave(at_step=3)]
    data = b"".join(encode_frame(message) for message in sent)
    for size in (1, 2, 3, 7, len(data)):
        buffer = FrameBuffer(RANKS)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert [message for piece in pieces for message in buffer.feed(piece)] == sent


def test_a_frame_longer_than_allowed_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        list(FrameBuffer(RANKS).feed(struct.pack(">I", FRAME_BYTES_MAX + 1)))


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x80", encode_frame(m.Detach())[4:]],
    ids=["empty", "garbled", "untagged", "other side's"],
)
def test_a_frame_that_makes_no_sense_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        list(FrameBuffer(RANKS).feed(struct.pack(">I", len(body)) + body))


def test_a_peer_that_goes_away_in_the_middle_of_a_frame_is_gone() -> None:
    async def read() -> m.ToRank | None:
        reader = asyncio.StreamReader()
        reader.feed_data(encode_frame(m.Hold())[:-1])
        reader.feed_eof()
        return await read_message(reader, RANKS)

    assert asyncio.run(read()) is None


def test_before_the_handshake_only_short_frames_are_read() -> None:
    async def read() -> m.ToRank | None:
        reader = asyncio.StreamReader()
        reader.feed_data(struct.pack(">I", 5_000))
        return await read_message(reader, RANKS, bytes_max=4_096)

    with pytest.raises(ProtocolError, match="at most 4096"):
        asyncio.run(read())
