"""A drain as a whole, under other settings, and rendered for people who trust no log."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from drainfsm.cli.main import main
from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import Sample
from drainfsm.core.codec import encode_lines
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.errors import ConfigError
from drainfsm.testing.scenario import NOON_UNIX_MS, Scenario
from drainfsm.views.history import by_attempt, read_file
from drainfsm.views.postmortem import Postmortem, postmortems
from drainfsm.views.postmortem_text import markdown, page, what_if_text
from drainfsm.views.what_if import OtherSettings, parse_settings

HISTORIES = Path(__file__).parents[1] / "replay" / "histories"
SKIPPED = HISTORIES / "notify_one_node_skipped_exited.jsonl"
LATE = HISTORIES / "signal_no_rank_timed_out_exited.jsonl"
SAVED = HISTORIES / "signal_two_nodes_resumed_finished.jsonl"


def _sample(scenario: Scenario, *, durable_ms: int) -> Sample:
    load = scenario.state.attempt.load
    return Sample(
        world_size=load.world_size,
        save_bytes=load.save_bytes,
        store=load.store,
        durable_ms=durable_ms,
        commit_ms=100,
    )


HOSTILE = "<script>alert(1)</script>\x1b[31m|`*"


def drains(path: Path, what_if: OtherSettings | None = None) -> list[Postmortem]:
    return postmortems(read_file(path).logs, what_if=what_if)


def test_a_skipped_save_with_a_longer_grace_would_have_fitted() -> None:
    (found,) = drains(SKIPPED, OtherSettings(grace_ms=60_000))
    (decision,) = found.decisions
    assert decision.other is not None
    assert (decision.recorded.fits, decision.other.fits) == (False, True)
    assert decision.other.needed_ms == decision.recorded.needed_ms
    assert decision.other.deadline_unix_ms == found.opened_unix_ms + 60_000


def test_the_smallest_window_is_the_smallest() -> None:
    (found,) = drains(SKIPPED)
    window_ms = found.smallest_window_ms
    assert window_ms is not None
    for grace_ms, fits in ((window_ms, True), (window_ms - 1, False)):
        (other,) = drains(SKIPPED, OtherSettings(grace_ms=grace_ms))
        assert [one.other.fits for one in other.decisions if one.other] == [fits]


def test_every_allowance_is_a_term_of_what_if() -> None:
    for name, longer_ms in (("exit_margin_ms", 500), ("quiesce_ms", 500), ("commit_ms", 500)):
        (found,) = drains(SKIPPED)
        recorded = found.decisions[0].recorded
        value = {
            "exit_margin_ms": recorded.exit_margin_ms,
            "quiesce_ms": recorded.quiesce.value_ms if recorded.quiesce else 0,
            "commit_ms": recorded.commit.value_ms if recorded.commit else 0,
        }[name]
        (other,) = drains(SKIPPED, OtherSettings(allowances={name: value + longer_ms}))
        changed = other.decisions[0].other
        assert changed is not None
        assert changed.needed_ms == recorded.needed_ms + longer_ms


def test_a_quantile_of_many_saves_is_taken_from_the_job_s_own() -> None:
    scenario = Scenario()
    for number in range(60):
        scenario.wait(1_000).when(
            e.CheckpointCommitted(
                generation_id=f"e000001-s{number:012d}-p",
                manifest_digest="sha256:00",
                slot=number + 1,
                step=number,
                sample=_sample(scenario, durable_ms=10 * (number + 1)),
            )
        )
    scenario.given(scenario.notice(in_ms=2_000), scenario.cordoned())
    (found,) = postmortems(by_attempt(scenario.history), what_if=OtherSettings(quantile=0.5))
    decision = found.decisions[-1]
    assert decision.other is not None and decision.other.durable is not None  # noqa: PT018
    assert decision.other.durable.basis == "quantile"
    assert 300 < decision.other.durable.value_ms < 400


def test_where_the_rule_did_not_speak_against_the_save_no_window_is_named() -> None:
    (found,) = drains(LATE, OtherSettings(grace_ms=600_000))
    assert found.late
    text = "\n".join(what_if_text(found))
    if found.decisions[0].recorded.fits:
        assert found.smallest_window_ms is None
        assert "not the rule" in text


def test_a_saved_drain_has_its_phases_in_order_and_its_replacement() -> None:
    found = drains(SAVED)[0]
    assert [phase.name for phase in found.phases][-4:] == [
        "staged",
        "durable",
        "published",
        "exited",
    ]
    assert all(phase.from_ms <= phase.to_ms for phase in found.phases)
    assert found.replacement is not None
    assert found.replacement.epoch == 2
    assert found.lost.steps == 0


@pytest.mark.parametrize("path", sorted(HISTORIES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_recorded_history_renders(path: Path) -> None:
    found = drains(path, OtherSettings(grace_ms=30_000))
    html = page(found)
    _Checked().feed(html)
    assert "http" not in html.replace("http-equiv", "")
    for one in found:
        assert list(markdown(one))
        assert list(what_if_text(one))
        previous = None
        for move in one.deadlines:
            assert previous is None or move.deadline_ms < previous
            previous = move.deadline_ms


def test_what_a_log_holds_is_no_markup() -> None:
    scenario = Scenario()
    hostile = Notice(
        source="notify",
        native_id=HOSTILE,
        cause=Cause(HOSTILE),
        detail=HOSTILE,
        notice_class=NoticeClass.HARD,
        deadline_unix_ms=NOON_UNIX_MS + 5_000,
        received_unix_ms=NOON_UNIX_MS,
    )
    scenario.given(i.ReceiveNotice(notice=hostile), scenario.cordoned())
    found = postmortems(by_attempt(scenario.history))
    html, text = page(found), "\n".join(markdown(found[0]))
    checked = _Checked()
    checked.feed(html)
    assert "script" not in checked.tags
    assert "\x1b" not in html + text
    assert not re.search(r"(?<!\\)<script", text)


class _Checked(HTMLParser):
    """Every element that opens closes, in order."""

    VOID = frozenset({"meta", "rect", "line"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names nothing"),
        ("grace", "not a number"),
        ("grace=-1", "out of range"),
        ("grace=nan", "out of range"),
        ("quantile=1", "between 0 and 1"),
        ("gras=3", "not known"),
    ],
)
def test_settings_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings(text)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(SKIPPED)]
    assert main(["explain", *file, "--what-if", "grace=60,store_bytes_per_s=2e9"]) == 0
    assert "the save would have fitted" in capsys.readouterr().out
    assert main(["explain", *file, "--json", "--what-if", "grace=60"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["decisions"][0]["other"]["fits"] is True
    assert main(["explain", *file, "--html", str(tmp_path / "one.html")]) == 0
    assert "does not fit" in (tmp_path / "one.html").read_text()
    assert main(["explain", *file, "--html", str(tmp_path / "no" / "one.html")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["explain", *file, "--what-if", "grace=x"]) == 2
    assert main(["explain", *file, "--what-if", ""]) == 2
    assert "names nothing" in capsys.readouterr().err


def test_a_page_of_several_jobs_names_none_alone(tmp_path: Path) -> None:
    logs, page_of = [], tmp_path / "page.html"
    for job_id in ("a", "b"):
        scenario = Scenario(job_id=job_id)
        scenario.when(scenario.notice())
        logs.append(encode_lines(scenario.history))
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(logs))
    assert main(["explain", "--file", str(path), "--html", str(page_of)]) == 0
    assert "<h1>Drains of 2 jobs</h1>" in page_of.read_text()
    assert main(["explain", "--file", str(path), "--job", "b", "--html", str(page_of)]) == 0
    assert "<h1>Drains of b</h1>" in page_of.read_text()


def test_where_there_is_no_drain_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(Scenario().history))
    for option in (["--markdown"], ["--what-if", "grace=60"], []):
        assert main(["explain", "--file", str(path), *option]) == 0
        assert "No drain in these records." in capsys.readouterr().out
    assert main(["explain", "--file", str(path), "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_a_history_is_what_export_wrote(tmp_path: Path) -> None:
    scenario = Scenario()
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(scenario.history))
    assert drains(path) == []
    assert "No drain" in page([])
