"""The offset of a server's clock, from ``Date`` headers with a resolution of one second."""

from __future__ import annotations

import math
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainfsm_adapters.server_clock import ServerClock
from drainfsm_adapters.times import from_http_date, from_rfc3339, from_utc8

START_UNIX_MS = 1_795_953_600_000


@st.composite
def exchanges(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """When each was sent, answered and received, by our clock."""
    found, now = [], START_UNIX_MS
    for _ in range(draw(st.integers(1, 100))):
        sent = now + draw(st.integers(1, 5_000))
        answered = sent + draw(st.integers(0, 2_000))
        now = answered + draw(st.integers(0, 2_000))
        found.append((sent, answered, now))
    return found


@given(exchanges(), st.integers(-3_600_000, 3_600_000))
def test_the_true_offset_lies_within_the_stated_uncertainty(
    timeline: list[tuple[int, int, int]], ahead_ms: int
) -> None:
    clock = ServerClock()
    widths = []
    for sent, answered, received in timeline:
        date = formatdate((answered + ahead_ms) // 1_000, usegmt=True)
        clock.observe(date, sent_unix_ms=sent, received_unix_ms=received)
        assert abs(clock.offset_ms - ahead_ms) <= clock.uncertainty_ms
        widths.append(clock.uncertainty_ms)
    first_sent, _, first_received = timeline[0]
    assert widths[0] <= math.ceil((1_000 + first_received - first_sent) / 2)


def test_more_answers_make_it_narrower() -> None:
    clock = ServerClock()
    widths = []
    for nth in range(20):
        sent = START_UNIX_MS + nth * 1_937
        date = formatdate((sent + 5 + 7_300) // 1_000, usegmt=True)
        clock.observe(date, sent_unix_ms=sent, received_unix_ms=sent + 10)
        widths.append(clock.uncertainty_ms)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 60 < widths[0]
    assert abs(clock.ours_unix_ms(START_UNIX_MS + 7_300) - START_UNIX_MS) <= widths[-1]


def test_a_step_of_the_clock_forgets_what_was_known() -> None:
    clock = ServerClock()
    for ahead_ms in (0, 0, 90_000):
        date = formatdate((START_UNIX_MS + ahead_ms) // 1_000, usegmt=True)
        clock.observe(date, sent_unix_ms=START_UNIX_MS, received_unix_ms=START_UNIX_MS + 10)
    assert abs(clock.offset_ms - 90_000) <= 1_000


@pytest.mark.parametrize("date", ["", "yesterday", "Sun, 99 Nov 2026 12:15:00 GMT", "0"])
def test_a_date_that_is_none_teaches_nothing(date: str) -> None:
    clock = ServerClock()
    clock.observe(date, sent_unix_ms=START_UNIX_MS, received_unix_ms=START_UNIX_MS)
    assert (clock.offset_ms, clock.uncertainty_ms) == (0, 0)


def test_every_cloud_writes_the_same_instant_its_own_way() -> None:
    noon = from_rfc3339("2026-11-29T12:02:00Z")
    assert noon == 1_795_953_720_000
    assert from_rfc3339("2026-11-29T13:02:00+01:00") == noon
    assert from_rfc3339("2026-11-29T12:02:00") == noon
    assert from_http_date("Sun, 29 Nov 2026 12:02:00 GMT") == noon
    assert from_http_date("29 Nov 2026 12:02:00 GMT") == noon
    assert from_http_date("Tue, 29 Nov 2026 12:02:00 GMT") == noon, "a wrong weekday is ignored"
    assert from_utc8("2026-11-29 20:02:00") == noon
