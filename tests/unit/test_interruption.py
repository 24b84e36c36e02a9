"""The first signal ends a command behind its clean-up, and no later one ends the clean-up."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from drainfsm.cli.interruption import ENDINGS, cleaning_up, run_cleaning_up


@pytest.mark.parametrize("number", ENDINGS)
def test_clean_up_is_not_interrupted_and_what_was_there_is_there_again(
    number: signal.Signals,
) -> None:
    before = [signal.getsignal(one) for one in ENDINGS]
    done = False

    def work() -> None:
        nonlocal done
        try:
            os.kill(os.getpid(), number)
            raise AssertionError("it went on")
        finally:
            for one in ENDINGS:
                os.kill(os.getpid(), one)
            done = True

    with pytest.raises(KeyboardInterrupt), cleaning_up():
        work()
    assert done
    assert [signal.getsignal(one) for one in ENDINGS] == before


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with cleaning_up():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert run_cleaning_up(_hangs_up()) == "went on"
    finally:
        signal.signal(signal.SIGHUP, before)


async def _hangs_up() -> str:
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0.05)
    return "went on"


@pytest.mark.parametrize("number", ENDINGS)
def test_what_awaits_is_cancelled_once(number: signal.Signals) -> None:
    done = False

    async def work() -> None:
        nonlocal done
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(600)
        finally:
            for one in ENDINGS:
                os.kill(os.getpid(), one)
            await asyncio.sleep(0.05)
            done = True

    with pytest.raises(KeyboardInterrupt):
        run_cleaning_up(work())
    assert done
