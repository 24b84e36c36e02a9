"""How the exit margin is spent, in numbers."""

from __future__ import annotations

from drainfsm.core.exit_plan import closing_ms, exit_plan, kill_to_exit_ms, kill_to_give_up_ms

DEADLINE_UNIX_MS = 1_800_000_000_000


def test_a_margin_of_5_s_is_divided_as_its_picture_says() -> None:
    plan = exit_plan(usable_deadline_unix_ms=DEADLINE_UNIX_MS, exit_margin_ms=5_000)
    assert DEADLINE_UNIX_MS - plan.leave_by_unix_ms == 5_000
    assert DEADLINE_UNIX_MS - plan.kill_by_unix_ms == 2_500
    assert DEADLINE_UNIX_MS - plan.give_up_by_unix_ms == 1_250
    assert DEADLINE_UNIX_MS - plan.exit_by_unix_ms == 625
    assert (kill_to_give_up_ms(5_000), kill_to_exit_ms(5_000)) == (1_250, 1_875)
    assert 2 * closing_ms(5_000) <= 625


def test_who_was_asked_early_has_the_whole_margin_and_no_more() -> None:
    early = exit_plan(
        usable_deadline_unix_ms=DEADLINE_UNIX_MS,
        exit_margin_ms=5_000,
        asked_unix_ms=DEADLINE_UNIX_MS - 60_000,
    )
    assert DEADLINE_UNIX_MS - early.kill_by_unix_ms == 55_000
    assert early.give_up_by_unix_ms - early.kill_by_unix_ms == 1_250


def test_who_was_asked_late_is_killed_when_everybody_is() -> None:
    late = exit_plan(
        usable_deadline_unix_ms=DEADLINE_UNIX_MS,
        exit_margin_ms=5_000,
        asked_unix_ms=DEADLINE_UNIX_MS - 4_000,
    )
    assert DEADLINE_UNIX_MS - late.kill_by_unix_ms == 2_500


def test_a_margin_that_has_no_quarters_is_divided_into_whole_milliseconds() -> None:
    plan = exit_plan(usable_deadline_unix_ms=DEADLINE_UNIX_MS, exit_margin_ms=5_015)
    assert DEADLINE_UNIX_MS - plan.kill_by_unix_ms == 2_507
    assert DEADLINE_UNIX_MS - plan.give_up_by_unix_ms == 1_254
    assert DEADLINE_UNIX_MS - plan.exit_by_unix_ms == 626
    assert (kill_to_give_up_ms(5_015), kill_to_exit_ms(5_015)) == (1_253, 1_881)
    assert closing_ms(5_015) == 313
