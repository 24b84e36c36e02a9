"""Waits between tries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drainfsm.core.backoff import backoff_s


def test_each_failure_doubles_the_wait_up_to_the_longest() -> None:
    waits = [backoff_s(n, first_s=1.0, longest_s=30.0) for n in range(1, 8)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@given(st.integers(min_value=1), st.floats(0.01, 60), st.floats(60, 3_600))
def test_it_is_bounded_for_any_number_of_failures(count: int, first_s: float, most: float) -> None:
    assert first_s <= backoff_s(count, first_s=first_s, longest_s=most) <= most
