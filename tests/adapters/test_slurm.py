"""The adapter beside a program in scontrol's place: what it asks, how long it waits, how it leaves.

The real one is asked in ``tests/slurm``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from drainfsm.adapter import AdapterContext, Departure, Interpreter, Staying
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.errors import ConfigError
from drainfsm.runtime.clock import Clock
from drainfsm.testing.adapter_contract import check_adapter, context_for
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_adapters.slurm import SlurmAdapter, adapter
from drainfsm_adapters.slurm_commands import SlurmFailedError
from drainfsm_adapters.slurm_records import SlurmLimits

DATA = Path(__file__).parent / "data" / "slurm"
SCRIPT = """#!/bin/bash
cd "$(dirname "$0")"
echo "$*" >> calls
if [ -e "signalled.$1" ]; then
    rm "signalled.$1"
    [ -e answers/later ] && mv answers/later answers/job
    kill -TERM $$
fi
[ -e hangs ] && exec sleep 60
if [ "$1" = requeue ] && [ -s away ]; then
    { read -r what; cat > away.rest; } < away
    mv away.rest away
    case $what in
        refused) ;;
        hangs) exec sleep 60 ;;
        *) echo "$what" >&2; exit 1 ;;
    esac
fi
for word; do [ "$before" = show ] && what=$word; before=$word; done
[ "$1" = requeue ] && what=requeue
[ "$1" = requeuehold ] && what=requeuehold
[ "$1" = update ] && what=update
cat "answers/$what" 2>/dev/null || { echo "$what refused" >&2; exit 1; }
"""


SLOW_MS = 60_000
"""More than a busy machine takes for a command."""


class Program:
    """Answers with recorded files, and notes what it was asked. ``hang``: it never answers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "answers").mkdir()
        (directory / "calls").touch()
        self.path = directory / "scontrol"
        self.path.write_text(SCRIPT)
        self.path.chmod(0o755)
        self.clock_ahead_s(0)
        self.answer("partition", "partition.txt")
        self.answer("node", "nodes.txt")
        self.answer("reservation", text="No reservations in the system\n")

    def answer(self, what: str, name: str = "", *, text: str = "", **changed: str) -> None:
        said = (DATA / name).read_text() if name else text
        for key, value in changed.items():
            said = said.replace(f"{key}=", f"{key}={value} Old{key}=")
        (self._directory / "answers" / what).write_text(said)

    def clock_ahead_s(self, seconds: int) -> None:
        """Of slurmctld, as its configuration says in passing."""
        line, rest = (DATA / "config.txt").read_text().split("\n", 1)
        now_unix_s = Clock().now_unix_ms() // 1_000 + seconds
        line = re.sub(r"[0-9]+", str(now_unix_s), line)
        self.answer("config", text=f"{line}\n{rest}")

    def hang(self) -> None:
        (self._directory / "hangs").touch()

    def away(self, *said: str) -> None:
        """To the next requeues: ``hangs``, or an error of the command."""
        (self._directory / "away").write_text("".join(f"{one}\n" for one in said))

    def signalled_once(self, command: str) -> None:
        """Slurm's SIGTERM to every process of the job ends the next such command. What ``later``
        answers is said of the job from then on."""
        (self._directory / f"signalled.{command}").touch()

    @property
    def calls(self) -> list[str]:
        return (self._directory / "calls").read_text().splitlines()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "low")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    return Program(tmp_path)


def made(
    program: Program,
    given: Mapping[str, str] | None = None,
    *,
    node_rank: int = 0,
    **more: str,
) -> SlurmAdapter:
    options = {"scontrol": str(program.path), **(given or {}), **more}
    return adapter(
        AdapterContext(
            job_id="job",
            node_rank=node_rank,
            node_count=2,
            grace_ms=20_000,
            options=options,
        )
    )


def end_in(seconds: int) -> dict[str, str]:
    return {"EndTime": str(Clock().now_unix_ms() // 1_000 + seconds)}


def test_it_keeps_the_contract_of_adapters(program: Program) -> None:
    program.answer("job", "running.txt", **end_in(3_600))
    program.answer("requeue")
    context = context_for({"scontrol": str(program.path), "node_drain": "ignore"})
    sink = asyncio.run(check_adapter(adapter, context, notice_count=1))
    causes = {(notice.cause, notice.notice_class) for notice in sink.notices}
    assert ("time_limit", NoticeClass.SOFT) in causes
    made_one = made(program)
    assert isinstance(made_one, Interpreter)
    assert isinstance(made_one, Staying)


@pytest.mark.parametrize("ahead_s", [90, -90])
def test_a_clock_that_is_off_moves_no_end(program: Program, ahead_s: int) -> None:
    """Of Slurm's nodes some may be minutes apart."""
    program.clock_ahead_s(ahead_s)
    program.answer("job", "running.txt", **end_in(600 + ahead_s))

    async def story() -> RecordingSink:
        async with watching(made(program, node_drain="ignore")) as sink:
            await sink.until(lambda: len(sink.notices) == 1)
            return sink

    sink = asyncio.run(story())
    deadline_unix_ms = sink.notices[0].deadline_unix_ms
    assert deadline_unix_ms is not None
    left_ms = deadline_unix_ms - sink.notices[0].received_unix_ms
    assert 600_000 - SLOW_MS < left_ms <= 600_000, "never later than slurmctld means"
    assert sink.unknown_now == ["slurm/clock"]


def test_a_job_that_is_taken_out_of_its_reservation_may_go_on_behind_it(program: Program) -> None:
    program.answer("reservation", "reservation.txt", **end_in(600))
    end = end_in(3_600)
    program.answer("job", "running.txt", **end, Partition="low Reservation=maint")

    async def story() -> None:
        async with watching(made(program, poll_s="1", node_drain="ignore")) as sink:
            await sink.until(lambda: len(sink.notices) == 2)
            assert sink.notices[1].cause == "reservation_end"
            program.answer("job", "running.txt", **end)
            await sink.until(lambda: len(sink.withdrawals) == 1)

    asyncio.run(story())


def test_the_nodes_of_every_component_of_a_heterogeneous_job_are_watched(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group, nodes in enumerate(("n[1-2]", "n7")):
        monkeypatch.setenv(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", nodes)
    program.answer("job", "running.txt", **end_in(3_600))

    async def story() -> None:
        async with watching(made(program)) as sink:
            await sink.until(lambda: "-o show node n[1-2],n7" in program.calls)

    asyncio.run(story())


def test_a_preemption_hardens_the_notice_of_the_end(program: Program) -> None:
    async def story() -> RecordingSink:
        program.answer("job", "running.txt", **end_in(3_600))
        async with watching(made(program, poll_s="1", node_drain="ignore")) as sink:
            await sink.until(lambda: len(sink.notices) == 1)
            program.answer("job", "preempted.txt", **end_in(20))
            await sink.until(lambda: len(sink.notices) == 2)
            return sink

    sink = asyncio.run(story())
    assert sink.identities == ["slurm/1.0/end"]
    assert [n.cause for n in sink.notices] == ["time_limit", "preemption"]
    assert sink.notices[1].notice_class is NoticeClass.HARD
    assert not sink.withdrawals


def test_a_limit_that_is_raised_is_another_notice(program: Program) -> None:
    async def story() -> RecordingSink:
        program.answer("job", "running.txt", **end_in(60))
        async with watching(made(program, poll_s="1", node_drain="ignore")) as sink:
            await sink.until(lambda: len(sink.notices) == 1)
            program.answer("job", "running.txt", **end_in(600))
            await sink.until(lambda: len(sink.notices) == 2)
            return sink

    sink = asyncio.run(story())
    assert sink.identities == ["slurm/1.0/end", "slurm/1.0/end~2"]
    assert [w.native_id for w in sink.withdrawals] == ["1.0/end"]


def test_only_node_0_asks(program: Program) -> None:
    async def story() -> str:
        other = made(program, node_rank=1, poll_s="1")
        async with watching(other) as sink:
            await asyncio.sleep(0.5)
            assert not sink.notices
        return await other.left(Departure(requeue=True, timeout_ms=1_000))

    assert asyncio.run(story()) == ""
    assert program.calls == []


def test_one_signal_of_many_nodes_is_one_question(program: Program) -> None:
    program.answer("job", "running.txt", **end_in(3_600))
    signal = Notice(
        source="signal",
        native_id="SIGTERM",
        cause=Cause.UNKNOWN,
        notice_class=NoticeClass.HARD,
        deadline_unix_ms=None,
        received_unix_ms=Clock().now_unix_ms(),
    )

    async def story() -> list[Notice | None]:
        asked = made(program)
        return await asyncio.gather(*(asked.interpret(signal, timeout_ms=5_000) for _ in range(50)))

    (said,) = set(asyncio.run(story()))
    assert said is not None
    assert said.identity == "slurm/1.0/SIGTERM"
    assert said.deadline_unix_ms == signal.received_unix_ms + 20_000
    assert len(program.calls) == 1


def test_every_command_has_an_end(program: Program) -> None:
    program.hang()

    async def story() -> None:
        hung = made(program, timeout_s="0.3", unknown_s="0.1")
        async with asyncio.timeout(20):
            async with watching(hung) as sink:
                await sink.until(lambda: bool(sink.silences))
            assert "gave no answer within 0.3 s" in sink.silences[0].detail
            with pytest.raises(SlurmFailedError, match="no answer"):
                await hung.cordon((), timeout_ms=400)
            with pytest.raises(SlurmFailedError, match="not known whether the job comes back"):
                await hung.left(Departure(requeue=True, timeout_ms=400))

    asyncio.run(story())


def test_a_missing_command_is_reported_at_once_with_what_to_do(program: Program) -> None:
    async def story() -> str:
        missing = made(program, scontrol="/missing/scontrol")
        async with watching(missing) as sink:
            await sink.until(lambda: bool(sink.silences))
            return sink.silences[0].detail

    assert "in a container, mount Slurm's commands" in asyncio.run(story())


@pytest.mark.parametrize(
    ("record", "changed", "options", "told"),
    [
        ("running.txt", {}, {}, "job 1 is requeued"),
        ("preempted.txt", {}, {}, "job 1 is requeued"),
        ("running.txt", {}, {"requeue": "stay"}, "job 1 is requeued"),
        ("running.txt", {"Restarts": "1"}, {}, "Slurm has requeued the job already: restart 1"),
        ("cancelling.txt", {"JobId": "1"}, {}, "the job was cancelled: not requeued"),
        ("running.txt", {"Requeue": "0"}, {"resubmit": "echo 17"}, "submitted again: 17"),
        ("running.txt", {}, {"requeue": "none"}, "not requeued: [adapters.slurm] requeue = none"),
        ("running.txt", {}, {"requeue": "none", "resubmit": "echo 17"}, "submitted again: 17"),
    ],
)
def test_the_last_act(
    record: str, changed: dict[str, str], options: dict[str, str], told: str, program: Program
) -> None:
    program.answer("job", record, **changed)
    program.answer("requeue")
    last = made(program, options)
    assert asyncio.run(last.left(Departure(requeue=True, timeout_ms=20_000))) == told
    assert ("requeue 1" in program.calls) == (told == "job 1 is requeued")


def test_a_question_that_a_signal_ended_is_asked_again(program: Program) -> None:
    program.answer("job", "running.txt")
    program.signalled_once("-o")
    program.answer("requeue")
    told = asyncio.run(made(program).left(Departure(requeue=True, timeout_ms=20_000)))
    assert told == "job 1 is requeued"
    assert program.calls == ["-o show job 1", "-o show job 1", "requeue 1"]


def test_a_requeue_that_ended_the_command_itself_was_obeyed(program: Program) -> None:
    program.answer("job", "running.txt")
    program.answer("later", "running.txt", Restarts="1")
    program.signalled_once("requeue")
    told = asyncio.run(made(program).left(Departure(requeue=True, timeout_ms=20_000)))
    assert told == "job 1 is requeued"


NO_CONTACT = "Unable to contact slurm controller (connect failure)"
NO_MUNGE = "error: Munge encode failed: Failed to access socket"


def test_a_controller_that_is_away_is_asked_until_it_is_back(program: Program) -> None:
    program.answer("job", "running.txt")
    program.answer("requeue")
    program.away(NO_CONTACT, NO_MUNGE, "hangs", NO_CONTACT)
    asked = made(program, timeout_s="1")
    assert (
        asyncio.run(asked.left(Departure(requeue=True, timeout_ms=60_000))) == "job 1 is requeued"
    )
    assert program.calls.count("requeue 1") == 5


def test_nothing_is_submitted_again_while_a_requeue_may_still_be_obeyed(
    program: Program, tmp_path: Path
) -> None:
    program.answer("job", "running.txt")
    program.away(*["hangs"] * 50)
    asked = made(program, timeout_s="0.5", resubmit=f"touch {tmp_path}/submitted")
    with pytest.raises(SlurmFailedError, match="not known whether the job comes back"):
        asyncio.run(asked.left(Departure(requeue=True, timeout_ms=4_000)))
    assert not (tmp_path / "submitted").exists()


def test_a_requeue_that_was_obeyed_late_is_no_reason_to_submit(
    program: Program, tmp_path: Path
) -> None:
    """It hangs, it is obeyed, and what is asked next is refused for that."""
    program.answer("job", "running.txt")
    program.away("hangs")
    asked = made(program, timeout_s="1", resubmit=f"touch {tmp_path}/submitted")

    async def story() -> str:
        leaving = asyncio.create_task(asked.left(Departure(requeue=True, timeout_ms=60_000)))
        while "requeue 1" not in program.calls:
            await asyncio.sleep(0.05)
        program.answer("job", "running.txt", Restarts="1")
        return await leaving

    assert asyncio.run(story()) == "job 1 is requeued"
    assert not (tmp_path / "submitted").exists()


def test_a_job_that_gets_no_further_is_held(program: Program) -> None:
    program.answer("job", "running.txt")
    program.answer("requeuehold")
    held = Departure(requeue=False, held="3 attempts left on step 7", timeout_ms=20_000)
    told = asyncio.run(made(program, resubmit="echo 17").left(held))
    assert told == ("job 1 is held (3 attempts left on step 7); `scontrol release 1` lets it go on")
    assert program.calls[-1] == "requeuehold 1"


def test_a_job_that_cannot_be_held_is_not_submitted_again_either(program: Program) -> None:
    program.answer("job", "running.txt", Requeue="0")
    held = Departure(requeue=False, held="no progress", timeout_ms=20_000)
    with pytest.raises(SlurmFailedError, match="will not come back by itself"):
        asyncio.run(made(program, resubmit="echo 17").left(held))


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ("", "staying until the preemption kills and requeues the job"),
        ("no progress", "job 1 is held (no progress); `scontrol release 1` lets it go on"),
    ],
)
def test_a_preempted_job_stays_for_its_end_unless_it_is_to_be_held(
    held: str, told: str, program: Program
) -> None:
    program.answer("job", "preempted.txt")
    program.answer("requeuehold")
    asked = made(program, requeue="stay")
    asked._facts.configured(SlurmLimits(preempt_mode="REQUEUE"))
    departure = Departure(requeue=not held, held=held, timeout_ms=20_000)
    assert asyncio.run(asked.left(departure)) == told


def test_a_refusal_is_no_reason_to_ask_again(program: Program) -> None:
    program.answer("job", "running.txt")
    program.away(*["Requested operation is presently disabled"] * 9)
    told = asyncio.run(
        made(program, resubmit="echo 17").left(Departure(requeue=True, timeout_ms=60_000))
    )
    assert told == "submitted again: 17"
    assert program.calls.count("requeue 1") == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [(NO_CONTACT, "submitted again: 17"), ("Socket timed out on send/recv", "not submitted again")],
)
def test_a_job_is_submitted_again_once(
    said: str, told: str, program: Program, tmp_path: Path
) -> None:
    """What nobody has heard is said again; what may have been heard is not."""
    tries = tmp_path / "tries"
    once = (
        f"echo t >> {tries}; [ $(wc -l < {tries}) = 2 ] && echo 17 || {{ echo '{said}'; exit 1; }}"
    )
    last = made(program, requeue="none", resubmit=once)

    async def story() -> str:
        try:
            return await last.left(Departure(requeue=True, timeout_ms=20_000))
        except SlurmFailedError as error:
            return str(error)

    assert asyncio.run(story()).startswith(told)
    assert len(tries.read_text().split()) == (2 if told.startswith("submitted") else 1)


def test_orders_for_a_task_of_an_array_name_that_task(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last task has the array's own number, by which an order goes to all of them."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "1")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    program.answer("job", "running.txt")
    program.answer("requeue")
    told = asyncio.run(made(program).left(Departure(requeue=True, timeout_ms=20_000)))
    assert told == "job 1_3 is requeued"
    assert program.calls == ["-o show job 1", "requeue 1_3"]
    again = made(program, requeue="none", resubmit="echo afterany:$SLURM_JOB_ID")
    told = asyncio.run(again.left(Departure(requeue=True, timeout_ms=20_000)))
    assert told == "submitted again: afterany:1_3"


@pytest.mark.parametrize(
    ("state", "told"),
    [("FAILED", "has failed"), ("OUT_OF_MEMORY", "was out of memory"), ("CANCELLED", "cancelled")],
)
def test_a_job_that_slurm_has_ended_for_good_is_not_brought_back(
    state: str, told: str, program: Program
) -> None:
    program.answer("job", "preempted.txt", JobState=state)
    program.answer("requeue")
    said = asyncio.run(made(program).left(Departure(requeue=True, timeout_ms=20_000)))
    assert told in said
    assert "requeue 1" not in program.calls


def test_one_warning_on_every_node_is_one_and_the_next_is_none(program: Program) -> None:
    program.answer("job", "running.txt", **end_in(130))

    def signal(after_ms: int) -> Notice:
        return Notice(
            source="signal",
            native_id="SIGUSR1",
            cause=Cause.UNKNOWN,
            notice_class=NoticeClass.HARD,
            deadline_unix_ms=None,
            received_unix_ms=Clock().now_unix_ms() + after_ms,
        )

    async def story() -> list[Notice | None]:
        asked = made(program, node_drain="ignore")
        async with watching(asked) as sink:
            await sink.until(lambda: bool(sink.notices))
            return [await asked.interpret(signal(ms), timeout_ms=9_000) for ms in (0, 5, 20_000)]

    first, same, second = asyncio.run(story())
    assert (first, same) == (None, None)
    assert second is not None
    assert second.cause == "unknown"


def test_where_requeue_is_off_and_nothing_else_is_configured_it_says_so(program: Program) -> None:
    program.answer("job", "running.txt", Requeue="0")
    with pytest.raises(SlurmFailedError, match="requeue is off for this job; submit it again"):
        asyncio.run(made(program).left(Departure(requeue=True, timeout_ms=20_000)))


def test_a_job_that_finished_asks_for_nothing(program: Program) -> None:
    assert asyncio.run(made(program).left(Departure(requeue=False, timeout_ms=1_000))) == ""
    assert program.calls == []


def test_a_cordon_keeps_the_reason_of_a_node_that_is_drained(program: Program) -> None:
    program.answer("update")
    told = asyncio.run(made(program).cordon(("n1", "n2"), timeout_ms=20_000))
    assert told == "drained: n1"
    assert program.calls[-1] == "update nodename=n1 state=drain reason=drainfsm: job leaves"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pol_s": "1"}, "pol_s"),
        ({"poll_s": "-1"}, "poll_s: must not be negative"),
        ({"timeout_s": "0"}, "timeout_s: must be above 0"),
        ({"requeue": "maybe"}, "requeue = 'maybe': take scontrol, stay, none"),
        ({"node_drain": "no"}, "node_drain = 'no': take leave, ignore"),
        ({"warning_signal": "USR1"}, "warning_signal = 'USR1' is not a signal"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str, program: Program) -> None:
    with pytest.raises(ConfigError, match=message):
        made(program, options)


def test_outside_a_job_it_says_so(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(ConfigError, match="no SLURM_JOB_ID in the environment"):
        made(program)
