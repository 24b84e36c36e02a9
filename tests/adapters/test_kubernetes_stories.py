"""One set of stories on every level that is here: what differs is a fault of the test server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from drainfsm_kit.kube.levels import NAMES, Level, level, missing
from drainfsm_kit.kube.stories import STORIES, not_here, play

LATE_MS = 1_000
"""Deadlines are written in whole seconds, cut off."""


@pytest.fixture(scope="module", params=NAMES)
def here(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Level]:
    name = request.param
    if why := missing(name):
        pytest.skip(why)
    with level(name, tmp_path_factory.mktemp(name)) as made:
        yield made


@pytest.mark.parametrize("story", STORIES)
def test_story(here: Level, story: str) -> None:
    if why := not_here(here.name, story):
        pytest.skip(why)
    _, expected = STORIES[story]
    row = asyncio.run(play(here, story))
    assert row.classes == expected.classes
    assert (row.notices, row.withdrawn, row.cause) == (
        expected.notices,
        expected.withdrawn,
        expected.cause,
    )
    if row.error_ms is not None:
        assert -LATE_MS - row.skew_ms <= row.error_ms <= row.skew_ms + LATE_MS
