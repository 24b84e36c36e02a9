"""The exit margin: everybody keeps to one plan, whose instants come in this order (I9)."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from drainfsm.core.exit_plan import closing_ms, exit_plan, kill_to_exit_ms, kill_to_give_up_ms

ROOT = Path(__file__).parents[2]
USABLE_UNIX_MS = 1_800_000_000_000
margins = st.one_of(st.integers(0, 64), st.integers(0, 600_000))


@given(margin_ms=margins, early_ms=st.none() | st.integers(-10_000, 1_000_000))
def test_ask_kill_give_up_exit_in_this_order_before_the_deadline(
    margin_ms: int, early_ms: int | None
) -> None:
    latest = USABLE_UNIX_MS - margin_ms
    asked = None if early_ms is None else latest - early_ms
    plan = exit_plan(
        usable_deadline_unix_ms=USABLE_UNIX_MS, exit_margin_ms=margin_ms, asked_unix_ms=asked
    )
    assert plan.leave_by_unix_ms == latest
    assert plan.kill_by_unix_ms <= plan.give_up_by_unix_ms <= plan.exit_by_unix_ms
    assert plan.exit_by_unix_ms + 2 * closing_ms(margin_ms) <= USABLE_UNIX_MS
    if asked is None:
        assert plan.leave_by_unix_ms <= plan.kill_by_unix_ms
    elif asked <= latest:
        assert asked + margin_ms // 2 <= plan.kill_by_unix_ms <= asked + margin_ms


@given(margin_ms=st.integers(16, 600_000))
def test_every_step_has_some_time(margin_ms: int) -> None:
    plan = exit_plan(usable_deadline_unix_ms=USABLE_UNIX_MS, exit_margin_ms=margin_ms)
    instants = (
        plan.leave_by_unix_ms,
        plan.kill_by_unix_ms,
        plan.give_up_by_unix_ms,
        plan.exit_by_unix_ms,
        USABLE_UNIX_MS,
    )
    assert sorted(set(instants)) == list(instants)
    assert closing_ms(margin_ms) > 0


@given(margin_ms=margins)
def test_a_node_that_is_on_its_own_ends_as_early_as_one_that_was_told(margin_ms: int) -> None:
    plan = exit_plan(usable_deadline_unix_ms=USABLE_UNIX_MS, exit_margin_ms=margin_ms)
    assert plan.kill_by_unix_ms + kill_to_exit_ms(margin_ms) == plan.exit_by_unix_ms
    assert plan.kill_by_unix_ms + kill_to_give_up_ms(margin_ms) == plan.give_up_by_unix_ms


def test_ranks_that_are_asked_early_have_the_whole_margin() -> None:
    asked = USABLE_UNIX_MS - 60_000
    plan = exit_plan(
        usable_deadline_unix_ms=USABLE_UNIX_MS, exit_margin_ms=5_000, asked_unix_ms=asked
    )
    assert plan.kill_by_unix_ms == asked + 5_000


def test_the_page_and_the_picture_tell_the_plan() -> None:
    plan = exit_plan(usable_deadline_unix_ms=0, exit_margin_ms=5_000)
    instants = (
        plan.leave_by_unix_ms,
        plan.kill_by_unix_ms,
        plan.give_up_by_unix_ms,
        plan.exit_by_unix_ms,
    )
    page = (ROOT / "docs/operate.md").read_text()
    rows = re.findall(r"^\| .* \| (?:the whole|an? )[^|]*\| ([\d,]+) \|$", page, re.MULTILINE)
    assert [-int(row.replace(",", "")) for row in rows] == list(instants)
    picture = " ".join(f"{at:,}" for at in (*instants, 0))
    for text in (page, (ROOT / "drainfsm/core/exit_plan.py").read_text()):
        drawn = next(line for line in text.splitlines() if line.strip().startswith("-5,000"))
        assert " ".join(drawn.split()) == picture


def test_nobody_else_divides_the_margin() -> None:
    sources = [*(ROOT / "drainfsm").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
    share = re.compile(r"margin\w*\s*(//|/|\*)\s*\d|\d\s*\*\s*[\w.]*margin")
    found = [str(path) for path in sources if share.search(path.read_text())]
    assert found == [str(ROOT / "drainfsm/core/exit_plan.py")]
