"""Whole notice stories on every cloud, as ``python -m drainfsm_kit.cloud_stories`` tells them."""

from __future__ import annotations

import asyncio

import pytest

from drainfsm_kit.cloud_stage import SOFT_STAGES, STAGES
from drainfsm_kit.cloud_stories import Row, play_all, plays, table

SLACK_MS = 5_000
"""For a machine with other work: what is meant is one poll, and 100 ms."""

POLL_MS_MAX = 5_000


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], Row]:
    return {(row.cloud, row.story): row for row in asyncio.run(play_all(at_once_max=12))}


@pytest.mark.parametrize("play", plays(), ids=lambda play: f"{play[0]}: {play[1]}")
def test_a_story_gives_the_notices_that_it_tells(
    play: tuple[str, str], rows: dict[tuple[str, str], Row]
) -> None:
    row = rows[play]
    assert row.as_expected, row
    if row.came.reaction_ms is not None:
        assert row.came.reaction_ms <= 2 * POLL_MS_MAX + SLACK_MS


def test_every_story_is_told_of_every_cloud_that_can_have_it() -> None:
    told = plays()
    for cloud in STAGES:
        stories = {story for found, story in told if found == cloud}
        assert len(stories) == (9 if cloud in SOFT_STAGES else 6), cloud


def test_the_table_has_a_line_for_each(rows: dict[tuple[str, str], Row]) -> None:
    lines = table(list(rows.values())).splitlines()
    assert len(lines) == len(plays()) + 2
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
