"""Exit codes, messages and what is printed, by the commands that need nothing but files."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.cli import notify, run
from drainfsm.cli.main import COMMANDS, main
from drainfsm.core.codec import decode_lines, encode, encode_lines
from drainfsm.log.journal import Journal, journal_path
from drainfsm.testing.scenario import Scenario
from drainfsm.views.history import read_file

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of whoever runs the tests, and no state of theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAINFSM_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    scenario = Scenario().saving()
    scenario.given(scenario.staged(), scenario.durable(), scenario.verified(), scenario.published())
    path = tmp_path / "job.jsonl"
    path.write_bytes(encode_lines(scenario.history))
    return path


def test_help_lists_every_command_and_the_exit_codes(capsys: Output) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    for name, text in COMMANDS.items():
        assert name in printed
        assert text in printed
    assert "75" in printed


def test_a_file_that_is_nested_without_end_is_damage_like_any_other(
    exported: Path, capsys: Output
) -> None:
    whole = exported.read_bytes()
    exported.write_bytes(whole + b'{"a":' * 3_000 + b"\n")
    assert main(["replay", "--file", str(exported)]) == 1
    said = capsys.readouterr()
    assert "manifest_published" in said.out
    assert "job.jsonl, line 12: " in said.err, "how deep is too deep differs among Pythons"


def test_no_command_is_a_usage_error(capsys: Output) -> None:
    assert main([]) == 2
    assert "usage: drainfsm" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: Output) -> None:
    with pytest.raises(SystemExit) as raised:
        main([name, "--help"])
    assert raised.value.code == 0
    assert f"usage: drainfsm {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rnu"], "rnu is not a command; did you mean run?"),
        (["--verison"], "--verison is not a command; did you mean --version?"),
        (["run", "--job", "j"], "run: no command"),
        (["run", "--job", "j", "--"], "run: no command"),
        (["run", "--job", "j", "--", "true"], "--store is missing"),
        (["run", "train.py", "--", "true"], "train.py is not known"),
        (["replay"], "--job is missing"),
        (["replay", "--job", "nobody"], "no records of job nobody"),
        (["replay", "--file", "nowhere.jsonl"], "--file nowhere.jsonl: No such file"),
        (["replay", "--fiel", "x"], "--fiel is not known; did you mean --file?"),
        (["replay", "--file", "x", "--epoch", "one"], "argument --epoch: invalid int value"),
        (
            ["notify", "--job", "j"],
            "one of the arguments --in --deadline --now --withdraw is required",
        ),
        (["notify", "--in", "5"], "--job is missing"),
        (["notify", "--job", "j", "--in", "soon"], "argument --in: invalid float value: 'soon'"),
        (["notify", "--job", "j", "--in", "nan"], "--in nan: leaves no time to act"),
        (["notify", "--job", "j", "--in", "1e300"], "--in 1e+300: is 1.15741e+295 days ahead"),
        (["notify", "--job", "j", "--deadline", "noon"], "--deadline noon: Invalid isoformat"),
        (["notify", "--job", "j", "--deadline", "2027-01-01T00:00:00"], "say which time zone"),
        (["notify", "--job", "j", "--withdraw"], "--withdraw needs --id"),
        (["notify", "--job", "j", "--withdraw", "--id", "i", "--wait"], "--wait is for a notice"),
        (["export", "--job", "j"], "one of the arguments -o/--output --otlp --archive is required"),
    ],
)
def test_a_usage_error_is_one_line_and_exits_with_2(
    argv: list[str], message: str, capsys: Output
) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("drainfsm: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_replay_shows_every_event_and_the_final_state(exported: Path, capsys: Output) -> None:
    assert main(["replay", "--file", str(exported)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("published  manifest_published") for line in lines)
    assert any(line.startswith("final state: published; committed e000001-s") for line in lines)
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--epoch", "7"], "--epoch 7: no such attempt; there are 1"),
        (["--drain", "job/1/9"], "--drain job/1/9: no such drain; there are: job/1/1"),
        (["--job", "other"], "no records of job other"),
    ],
)
def test_a_part_that_is_not_there_is_named_with_those_that_are(
    exported: Path, argv: list[str], message: str, capsys: Output
) -> None:
    assert main(["replay", "--file", str(exported), *argv]) == 2
    assert message in capsys.readouterr().err


def test_damage_is_said_after_what_stands_before_it(exported: Path, capsys: Output) -> None:
    data = exported.read_bytes()
    exported.write_bytes(data + b"garbage\n" + data)
    whole = len(data.splitlines())
    assert main(["replay", "--file", str(exported)]) == 1
    printed = capsys.readouterr()
    assert "manifest_published" in printed.out
    assert f"line {whole + 1}" in printed.err


def test_an_export_is_read_back_to_the_same_bytes(
    exported: Path, tmp_path: Path, capsys: Output
) -> None:
    again, third = tmp_path / "again.jsonl", tmp_path / "third.jsonl"
    assert main(["export", "--file", str(exported), "-o", str(again)]) == 0
    assert main(["export", "--file", str(again), "-o", str(third)]) == 0
    assert exported.read_bytes() == again.read_bytes() == third.read_bytes()
    outputs = []
    for path in (exported, again):
        capsys.readouterr()
        assert main(["replay", "--file", str(path), "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != ""


def test_an_unknown_event_with_line_breaks_stays_one_line(exported: Path, tmp_path: Path) -> None:
    position = len(exported.read_bytes().splitlines())
    raw = (
        b'{"v":1,"id":"new","job_id":"job","epoch":1,"follows":%d,"at_unix_ms":5,'
        b'"events":[{"kind":"moon_phase","text":"a\\nb","full":true}]}\n' % position
    )
    exported.write_bytes(exported.read_bytes() + raw)
    target = tmp_path / "again.jsonl"
    assert main(["export", "--file", str(exported), "-o", str(target)]) == 0
    assert target.read_bytes().endswith(raw)


def test_the_journals_of_this_machine_are_read_by_the_name_of_the_job(
    exported: Path, tmp_path: Path, capsys: Output
) -> None:
    records = list(decode_lines(exported.read_bytes()))
    path = journal_path(tmp_path / "state", job_id="job", epoch=1)
    journal = Journal.open(path, job_id="job", epoch=1)
    journal.append(*records)
    journal.close()
    outputs = []
    for argv in (["--job", "job"], ["--file", str(path)], ["--file", str(exported)]):
        assert main(["replay", "--json", *argv]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2] != ""
    assert main(["export", "--job", "job", "-o", "-"]) == 0


def test_a_journal_that_is_still_torn_is_read_up_to_its_tail(
    exported: Path, tmp_path: Path, capsys: Output
) -> None:
    records = list(decode_lines(exported.read_bytes()))
    path = journal_path(tmp_path / "state", job_id="job", epoch=1)
    journal = Journal.open(path, job_id="job", epoch=1)
    for record in records:
        journal.append(record)
    journal.close()
    path.write_bytes(path.read_bytes()[:-3])
    assert main(["replay", "--job", "job"]) == 0
    printed = capsys.readouterr().out
    assert "entries_verified" in printed
    assert "manifest_published" not in printed


def test_explain_says_why_with_the_arithmetic(exported: Path, capsys: Output) -> None:
    assert main(["explain", "--file", str(exported)]) == 0
    printed = capsys.readouterr().out
    assert "job job, attempt 1" in printed
    assert "exit margin" in printed


def test_history_counts_what_the_fold_skips_as_records_too(exported: Path) -> None:
    data = exported.read_bytes()
    first = data.splitlines(keepends=True)[0]
    exported.write_bytes(data + first)
    records = read_file(exported).records
    assert b"".join(encode(record) + b"\n" for record in records) == data + first


def test_a_notice_for_a_job_that_does_not_run_here_says_what_to_do(capsys: Output) -> None:
    assert main(["notify", "--job", "nobody", "--in", "30"]) == 1
    message = capsys.readouterr().err
    assert "no agent of job 'nobody'" in message
    assert "--state-dir" in message


@pytest.mark.parametrize(
    ("argv", "unix_ms"),
    [
        (["--in", "30"], 1_030_000),
        (["--in", "0.5"], 1_000_500),
        (["--now"], 1_000_000),
        (["--deadline", "1970-01-01T00:17:00Z"], 1_020_000),
        (["--deadline", "1970-01-01T02:17:00.250+02:00"], 1_020_250),
    ],
)
def test_the_deadline_of_a_notice(argv: list[str], unix_ms: int) -> None:
    arguments = notify.parser().parse(argv)
    assert notify.deadline_of(arguments, now_unix_ms=1_000_000) == unix_ms


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--in", "-5"], "--in -5: is 5 s in the past"),
        (["--in", "0"], "--in 0: leaves no time to act"),
        (["--in", "nan"], "--in nan: leaves no time to act"),
        (
            ["--in", "31536000"],
            "--in 3.1536e+07: is 365 days ahead, more than 90, and without --soft",
        ),
        (["--in", "31536000", "--soft"], "is 365 days ahead, more than 90; give it"),
        (["--in", "inf"], "inf days ahead"),
        (["--deadline", "2020-01-01T00:00:00Z"], "s in the past"),
        (["--deadline", "2020-01-01T00:00:00"], "say which time zone"),
        (["--now", "--in", "5"], "not allowed with argument"),
    ],
)
def test_what_a_person_cannot_mean_is_an_error_before_anything_is_done(
    argv: list[str], message: str, capsys: Output
) -> None:
    assert main(["notify", "--job", "nobody", *argv]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["replay", "explain", "report"])
def test_no_cause_moves_the_cursor_or_forges_a_line(
    command: str, tmp_path: Path, capsys: Output
) -> None:
    bad = "x\x1b[2J\nDrain llm/1/9\u202e" + "y" * 100_000
    scenario = Scenario()
    given = scenario.notice(native_id=bad)
    scenario.given(replace(given, notice=replace(given.notice, cause=bad, detail=bad)))
    path = tmp_path / "job.jsonl"
    path.write_bytes(encode_lines(scenario.history))
    assert main([command, "--file", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert "\nDrain llm/1/9" not in printed
    assert len(printed) < 20_000


def test_what_is_no_record_is_said_and_the_rest_is_read(exported: Path, capsys: Output) -> None:
    assert main(["replay", "--file", str(exported)]) == 0
    whole = capsys.readouterr().out
    first, *rest = exported.read_bytes().splitlines(keepends=True)
    exported.write_bytes(first + b"\xff garbage\n" + b"".join(rest))
    assert main(["replay", "--file", str(exported)]) == 1
    told = capsys.readouterr()
    assert told.out == whole
    assert "line 2" in told.err


def test_help_of_a_command_and_the_version(capsys: Output) -> None:
    with pytest.raises(SystemExit):
        main(["help", "notify"])
    assert "usage: drainfsm notify" in capsys.readouterr().out
    assert main(["-V"]) == 0
    assert capsys.readouterr().out.startswith("drainfsm 0")


@pytest.mark.parametrize(
    ("argv", "variables"),
    [
        (["--token", "x", "--nats", "nats://u:p@h:4222"], ["DRAINFSM_TOKEN", "DRAINFSM_NATS"]),
        (["--token=x"], ["DRAINFSM_TOKEN"]),
        (["--nats", "nats://h:4222", "--", "prog", "--token", "x"], []),
    ],
)
def test_secrets_on_the_command_line_are_warned_of(
    argv: list[str], variables: list[str], capsys: Output
) -> None:
    run._warn_of_secrets(argv)
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in told] == variables
    assert "u:p" not in "".join(told)


@pytest.mark.parametrize("command", [["plan", "--bytes", "1GB"], ["doctor", "--job", "llm"]])
def test_a_working_directory_that_was_removed_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(command) == 1
    assert capsys.readouterr().err == (
        "drainfsm: the working directory was removed: go to another one\n"
    )
