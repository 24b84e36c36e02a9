"""``report --all``: the sums of the jobs' own reports, in bounded memory, and nothing is markup."""

from __future__ import annotations

import csv
import io
import tracemalloc
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core.codec import encode_lines
from drainfsm.core.notice import Cause
from drainfsm.core.records import Record
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.journal import Journal, journal_path
from drainfsm.testing.scenario import Scenario
from drainfsm.views.attempts import Ending
from drainfsm.views.fleet import AttemptFilter, Fleet, FleetReport
from drainfsm.views.history import by_attempt, read_file
from drainfsm.views.jobs import jobs_of_file
from drainfsm.views.report import report_jobs
from drainfsm_kit.shipping import ship

HISTORIES = sorted(
    path
    for path in (Path(__file__).parents[1] / "replay" / "histories").glob("*.jsonl")
    if "." not in path.stem  # what a version recorded: each brings one more
)
MARKUP = "<img src=x onerror=alert(1)>"


def records() -> Iterator[Record]:
    """Of one job a history, all mixed as a stream mixes them."""
    by_job = [
        [replace(record, job_id=path.stem) for record in read_file(path).records]
        for path in HISTORIES
    ]
    for number in range(max(map(len, by_job))):
        yield from (job[number] for job in by_job if number < len(job))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "all.jsonl"
    path.write_bytes(encode_lines(records()))
    return path


def fleet_of(path: Path, **wanted: object) -> FleetReport:
    fleet = Fleet(msgspec.convert(wanted, AttemptFilter))
    for job in jobs_of_file(path):
        fleet.add(job)
    return fleet.report()


def test_it_is_the_sum_of_the_jobs_reports(mixed: Path) -> None:
    made = fleet_of(mixed)
    assert made.totals == report_jobs(by_attempt(records())).totals
    assert made.job_count == len(HISTORIES)
    drains = sum(sum(outcomes.values()) for outcomes in made.causes.values())
    assert drains == sum(made.totals.drains.values()) == sum(p.drain_count for p in made.phases)
    assert sum(one.count for one in made.headroom_bins) == made.headroom.count > 0
    assert sum(day.work_lost_ms for day in made.days) == made.totals.work_lost_ms
    assert sum(day.lost_count for day in made.days) == made.totals.endings[Ending.LOST]
    assert sum(one.work_lost_ms for one in made.costliest) == made.totals.work_lost_ms


def test_filters_choose_attempts(mixed: Path) -> None:
    everything = fleet_of(mixed).totals.attempt_count
    (cause, outcomes), *_ = fleet_of(mixed).causes.items()
    chosen = fleet_of(mixed, cause=cause)
    assert 0 < chosen.totals.attempt_count < everything
    assert chosen.causes[cause] == outcomes
    by_size = [fleet_of(mixed, world_size=n).totals.attempt_count for n in range(8)]
    assert sum(by_size) == everything
    assert fleet_of(mixed, source="notify").totals.attempt_count == 3
    assert fleet_of(mixed, source="nobody") == fleet_of(mixed, cause="nobody")
    assert fleet_of(mixed, since_unix_ms=10**15).totals.attempt_count == 0
    assert fleet_of(mixed, since_unix_ms=1).totals.attempt_count == everything


def test_what_is_kept_of_an_attempt_is_a_few_numbers(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    history = committed().history
    with path.open("wb") as file:
        for number in range(1_000):
            lines = [replace(record, job_id=f"job-{number}") for record in history]
            file.write(encode_lines(lines))
    jobs = jobs_of_file(path)
    fleet = Fleet(AttemptFilter())
    kept_bytes = []
    tracemalloc.start()
    try:
        for _ in range(2):
            for job in islice(jobs, 500):
                fleet.add(job)
            kept_bytes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert fleet.report().totals.attempt_count == 1_000
    assert kept_bytes[1] - kept_bytes[0] < 500 * 250


def committed() -> Scenario:
    scenario = Scenario().saving(in_ms=60_000)
    return scenario.given(
        scenario.staged(), scenario.durable(), scenario.verified(), scenario.published()
    )


def test_damage_is_told_and_the_rest_is_added_up(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = fleet_of(mixed)
    mixed.write_bytes(b"no record\n" + mixed.read_bytes() + b'{"job_id": "x"}\n')
    assert main(["report", "--all", "--file", str(mixed), "--json"]) == 1
    told = capsys.readouterr()
    made = msgspec.json.decode(told.out, type=FleetReport)
    assert made.totals == whole.totals
    assert "line 1" in made.damage
    assert "line 1" in told.err


def test_every_source_of_logs_gives_the_same(
    mixed: Path,
    tmp_path: Path,
    nats_server: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for log in by_attempt(records()):
        path = journal_path(tmp_path, job_id=log.job_id, epoch=log.epoch)
        journal = Journal.open(path, job_id=log.job_id, epoch=log.epoch)
        journal.append(*log.records)
        journal.close()
    ship(nats_server.url, by_attempt(records()))
    told = []
    for where in (
        ["--file", str(mixed)],
        ["--state-dir", str(tmp_path)],
        ["--nats", nats_server.url],
    ):
        assert main(["report", "--all", *where, "--csv"]) == 0
        rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
        own = [row for row in rows if row["job_id"] in {path.stem for path in HISTORIES}]
        told.append(sorted(own, key=lambda row: (row["job_id"], row["epoch"])))
    assert told[0] == told[1] == told[2]
    assert len(told[0]) == fleet_of(mixed).totals.attempt_count


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name == "src"]


def test_the_page_has_plots_and_no_markup_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = Scenario()
    given = scenario.notice(in_ms=60_000)
    scenario.when(replace(given, notice=replace(given.notice, cause=Cause(MARKUP))))
    path, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    path.write_bytes(
        encode_lines(replace(record, job_id=f"=1+{MARKUP}") for record in scenario.history)
    )
    assert main(["report", "--all", "--file", str(path), "--html", str(page)]) == 0
    tags = _Tags()
    tags.feed(page.read_text())
    assert "img" not in tags.found
    assert {"svg", "rect", "table"} <= tags.found
    capsys.readouterr()


@pytest.mark.parametrize("first", [*"=+-@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t=", "\r="])
def test_a_name_is_no_formula(
    first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    history = Scenario().history
    path.write_bytes(encode_lines(replace(record, job_id=f"{first}1") for record in history))
    assert main(["report", "--all", "--file", str(path), "--csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["job_id"] in (f"'{first}1", "\\t=1", "\\r=1")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--since", "yesterday", "--all"], "--since yesterday: give a date"),
        (["--since", "999999w", "--all"], ""),
        (["--cause", "x", "--job", "j"], "go with --all"),
        (["--all", "--job", "j"], "--all goes with neither"),
        (["--all", "--file", "/nowhere"], "--file /nowhere: No such file"),
    ],
)
def test_what_does_not_go_together(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["report", *argv, "--state-dir", str(tmp_path)])
    assert code == (2 if message else 0)
    assert message in capsys.readouterr().err
