"""What platforms write where a number, an instant or a name belongs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainfsm_adapters.lenient import identity_of, says_nothing, whole_number
from drainfsm_adapters.metadata import NoAnswerError
from drainfsm_adapters.times import from_http_date, from_rfc3339, from_utc8

PARSERS = (from_rfc3339, from_http_date, from_utc8)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "\u00b2",
        "9" * 5_000,
        "Mon, 19 Sep 99999999999 18:29:47 GMT",
        "99999999999-01-01T00:00:00Z",
        "Mon, 31 Feb 2026 18:29:47 GMT",
        "2026-02-31T00:00:00Z",
        "Mon, 19 Sep 2026 99:99:99 GMT",
        "null",
    ],
)
def test_what_is_no_instant_is_a_value_error(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(ValueError, match="instant"):
        parse(text)


@given(st.text(max_size=80))
def test_no_text_is_worse_than_a_value_error(text: str) -> None:
    for parse in PARSERS:
        with contextlib.suppress(ValueError):
            assert isinstance(parse(text), int)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (9, 9),
        ("9", 9),
        ("21600", 21_600),
        (None, None),
        ("", None),
        ("\u00b2", None),
        ("\u0663", None),
        ("9" * 5_000, None),
        ("9.5", None),
        (True, None),
    ],
)
def test_a_number_is_one_in_digits_and_of_a_size(value: object, number: int | None) -> None:
    assert whole_number(value) == number


@pytest.mark.parametrize(
    ("text", "nothing"),
    [("null", True), ("NONE", True), ('"NONE"', True), (" \n", True), ("[]", False), ("0", False)],
)
def test_words_for_nothing(text: str, nothing: bool) -> None:
    assert says_nothing(text) is nothing


@pytest.mark.parametrize(
    ("text", "name"), [("i-0123", "i-0123"), ('"gpu-0"', "gpu-0"), ("vmss_3\n", "vmss_3")]
)
def test_a_name_is_taken_without_what_is_around_it(text: str, name: str) -> None:
    assert identity_of(text, what="name") == name


@pytest.mark.parametrize("text", ["", "<html>", "two words", "x" * 200, "a/b", "null\nnull"])
def test_what_is_no_name_is_no_answer(text: str) -> None:
    with pytest.raises(NoAnswerError, match="not a name"):
        identity_of(text, what="name")
