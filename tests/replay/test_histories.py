"""Histories of real agents, recorded once: they replay to the same states for ever.

``NAME.jsonl`` is what ``drainfsm export`` wrote; ``NAME.states`` is what its events did when it was
recorded; ``NAME.pub``, where there is one, the key that signed it. None is edited. A history that
stops replaying is a log of a user that does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.core.explain import explain
from drainfsm.core.fold import Fold
from drainfsm.core.rules import broken_rules
from drainfsm.log.signing import SignersKnown
from drainfsm.machine import DrainMachine
from drainfsm.views.history import export_lines, read_file
from drainfsm.views.raw_log import file_lines
from drainfsm.views.replay import replay_attempt, replay_job
from drainfsm.views.verify import verify_attempts
from drainfsm_kit.histories import states

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.jsonl"))


@pytest.fixture(params=HISTORIES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_there_are_histories_of_every_outcome() -> None:
    finals = [replay.final for path in HISTORIES for replay in replay_job(read_file(path).logs)]
    assert {"exited", "idle", "lost"} <= {final.phase.value for final in finals}
    kinds = {
        line.kind
        for path in HISTORIES
        for replay in replay_job(read_file(path).logs)
        for line in replay.lines
    }
    assert {"manifest_published", "save_skipped", "drain_cancelled", "quiesce_timed_out"} <= kinds


def test_the_states_are_those_of_the_day_it_was_recorded(path: Path) -> None:
    history = read_file(path)
    assert history.damage == ""
    expected = path.with_suffix(".states").read_text(encoding="utf-8")
    assert states(replay_job(history.logs)) == expected


def test_reading_and_writing_gives_the_same_bytes(path: Path) -> None:
    assert export_lines(read_file(path)) == path.read_bytes()


def test_nothing_was_changed_in_it_since(path: Path) -> None:
    lines = file_lines(path, job_id=None).lines
    found = verify_attempts(lines, {})
    assert [one.findings for one in found] == [()] * len(found)
    assert {one.chained for one in found} == {path.stem.startswith("chained")}


def test_who_signed_it_is_known_and_everything_else_was_never_signed(path: Path) -> None:
    public = path.with_suffix(".pub")
    assert public.exists() == ("signed" in path.stem)
    signers = SignersKnown()
    if public.exists():
        signers.add(public.read_text(encoding="utf-8").strip(), where=public.name)
    found = verify_attempts(file_lines(path, job_id=None).lines, {}, signers=signers)
    kinds = {finding.kind for one in found for finding in one.findings}
    assert kinds == (set() if public.exists() else {"unsigned"})


def test_every_prefix_replays_to_the_state_that_was_live_then(path: Path) -> None:
    for log in read_file(path).logs:
        fold = Fold(job_id=log.job_id, epoch=log.epoch)
        for count, record in enumerate(log.records, start=1):
            assert fold.read(record)
            prefix = replay_attempt(replace(log, records=log.records[:count]))
            assert prefix.final.phase is prefix.lines[-1].phase is fold.state.phase


def test_no_rule_is_broken_and_every_decision_adds_up(path: Path) -> None:
    for replay in replay_job(read_file(path).logs):
        assert list(broken_rules(replay.counted)) == []
        assert "WARNING" not in "\n".join(explain(replay.counted))


def test_a_machine_that_follows_it_goes_through_the_same_states(path: Path) -> None:
    for log in read_file(path).logs:
        machine = DrainMachine.follow(job_id=log.job_id, epoch=log.epoch)
        fold = Fold(job_id=log.job_id, epoch=log.epoch)
        for record in log.records:
            assert machine.apply(record) == fold.read(record)
            assert machine.state == fold.state.phase.value
        assert machine.folded == fold.state
