"""Every decoder of foreign bytes refuses what it cannot read with the error that it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from drainfsm_kit.decoders import kept, with_corpus
from drainfsm_kit.odd_bytes import NESTED, TOKENS, Decoder

CORPUS = Path(__file__).parent.parent / "corpus"
DECODERS = with_corpus(CORPUS)
each = pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)


def test_the_corpus_belongs_to_decoders() -> None:
    names = {decoder.name for decoder in DECODERS}
    assert {path.name for path in CORPUS.iterdir()} <= names


@each
def test_what_is_right_is_taken(decoder: Decoder) -> None:
    """Else a mutation of it would prove nothing."""
    assert any(decoder.take(seed) for seed in decoder.seeds)


@each
def test_nested_without_end_is_refused_like_anything_else(decoder: Decoder) -> None:
    for opening in (b"[", b'{"a":', b"\x91", b"\x81\xa1a", b'{"jobs":[', b"a=["):
        data = opening * NESTED
        decoder.take(data)
        decoder.take(len(data).to_bytes(4, "big") + data)


@each
def test_odd_bytes_alone_and_around_what_is_right(decoder: Decoder) -> None:
    for token in TOKENS:
        for data in (token, token + decoder.seeds[0], decoder.seeds[0] + token):
            decoder.take(data)


@each
def test_what_was_found_before(decoder: Decoder) -> None:
    for data in kept(CORPUS, decoder.name):
        decoder.take(data)


@each
def test_any_bytes_at_all(decoder: Decoder) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
    @given(decoder.strategy())
    def search(data: bytes) -> None:
        decoder.take(data)

    search()
