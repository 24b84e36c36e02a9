"""A few points of the crash matrix; ``make crash-matrix`` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainfsm_kit.crash_matrix import record_points, run_point

POINTS = [
    ("rank1:fsync:generations/e000001-step-d1/rank1:before", "process"),
    ("agent0:append:durable:after", "job"),
    ("agent0:link:generations/e000001-step-d1/manifest.json:after", "process"),
    ("agent0:append:manifest_published:before", "job"),
    ("agent0:link:requeue/000001.json:before", "process"),
]


@pytest.mark.parametrize(("point", "scope"), POINTS)
def test_after_a_kill_at_this_point_nothing_committed_is_lost(
    point: str, scope: str, tmp_path: Path
) -> None:
    outcome = run_point(point, scope, tmp_path)
    assert outcome.reached
    assert outcome.lost == ""
    assert outcome.resumed_step == outcome.committed_before + 1


def test_an_undisturbed_save_passes_the_points_in_the_order_of_the_protocol(
    tmp_path: Path,
) -> None:
    points = record_points(tmp_path)
    order = [
        "rank0:report_staged:e000001-step-d1:after",
        "rank0:report_durable:e000001-step-d1:before",
        "agent0:append:durable:after",
        "agent0:append:entries_verified:after",
        "agent0:link:generations/e000001-step-d1/manifest.json:before",
        "agent0:append:manifest_published:before",
        "agent0:append:exited:before",
    ]
    assert [point for point in points if point in order] == order
