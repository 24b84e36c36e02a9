"""``drainfsm run`` that cannot start: a healthy attempt elsewhere is left alone, and whoever waits
for this one is told."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drainfsm.core import events as e
from drainfsm_kit import plugin
from drainfsm_kit.running import RunningJob, free_port

HTTPS = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "https://169.254.169.254"}
NOWHERE = {
    "AWS_ENDPOINT": "http://127.0.0.1:9",
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
}
"""An object store that nobody answers for."""


def aws(**options: str) -> dict[str, Any]:
    return {"source": ["aws"], "adapters": {"aws": options}}


@pytest.mark.parametrize(
    ("settings", "variables", "told"),
    [
        (aws(poll_s="9"), {}, "poll_s"),
        (aws(capacity_block_end="2020-01-01T00:00:00Z"), {}, "capacity_block_end"),
        (aws(), HTTPS, "https://"),
        ({"cordon": "aws", "adapters": {"aws": {"poll_s": "9"}}}, {}, "poll_s"),
        (plugin.settings(Path("/"), fail="1"), {}, "RuntimeError: no such region"),
        ({"command": ("no-such-command",)}, {}, "no-such-command"),
    ],
    ids=["option", "date", "endpoint", "cordon", "third-party", "command"],
)
def test_what_can_be_known_is_found_before_the_claim(
    job: RunningJob,
    tmp_path: Path,
    settings: dict[str, Any],
    variables: dict[str, str],
    told: str,
) -> None:
    healthy = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    site = plugin.install(tmp_path / "site")
    other = tmp_path / "other-machine"
    second = job.start(
        ("true",), variables={**site, **variables}, settings={"state_dir": str(other), **settings}
    )
    assert second.wait() == 2, second.output()
    assert told in second.output()
    commits = job.store / "commits"
    assert len(list(commits.iterdir())) == 1, "the second start has claimed the job"
    healthy.signal()
    assert healthy.wait() == 75
    assert job.find(e.ManifestPublished) != []


def test_a_node_0_that_refuses_to_start_tells_the_others(pair: RunningJob) -> None:
    refusing = pair.start(("true",), settings=aws(poll_s="9"))
    waiting = pair.start(("true",), node_rank=1)
    assert waiting.wait() == 2
    assert "node 0 does not start the attempt" in waiting.output()
    assert "poll_s" in waiting.output()
    assert refusing.wait() == 2, "it has told everybody"


def test_a_node_that_is_wrong_or_missing_leaves_a_healthy_attempt_alone(
    job: RunningJob, tmp_path: Path
) -> None:
    """Node 0 finds nothing wrong on its own machine."""
    healthy = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    two = {"nnodes": 2, "coordinator": f"127.0.0.1:{free_port()}", "state_dir": str(tmp_path / "2")}
    good = job.start(("true",), settings=two)
    wrong = job.start(("true",), node_rank=1, settings={**two, **aws(poll_s="9")})
    assert (wrong.wait(), good.wait()) == (2, 2)
    assert "node 1: [adapters.aws] poll_s" in good.output()
    alone = job.start(("true",), settings={**two, "attach_s": 1.0})
    assert alone.wait() == 75
    assert "node 1 did not come within 1 s" in alone.output()
    assert len(list((job.store / "commits").iterdir())) == 1, "the job was claimed"
    healthy.signal()
    assert healthy.wait() == 75
    assert job.find(e.ManifestPublished) != []


def test_a_start_that_is_to_be_tried_again_reaches_the_requeue(
    job: RunningJob, tmp_path: Path
) -> None:
    agent = job.start(
        ("true",),
        variables={**plugin.install(tmp_path / "site"), **NOWHERE},
        settings={**plugin.settings(tmp_path), "store": "s3://bucket/job"},
    )
    assert agent.wait() == 75
    requeue, timeout_ms, *left_for = (tmp_path / "left-0").read_text().split()
    assert (requeue, left_for) == ("True", [])
    assert int(timeout_ms) > 10_000, "time enough for a scheduler that is busy"


def test_a_notice_whose_time_is_up_before_the_start_reaches_the_requeue(
    pair: RunningJob, tmp_path: Path
) -> None:
    """Node 1 waits for node 0."""
    agent = pair.start(
        ("true",),
        node_rank=1,
        grace_s=3.0,
        variables=plugin.install(tmp_path / "site"),
        settings=plugin.settings(tmp_path),
    )
    pair.wait(lambda: "waiting for the coordinator" in agent.output() or None, what="waiting")
    agent.signal()
    assert agent.wait() == 75
    assert (tmp_path / "left-1").read_text().startswith("True")


def test_what_an_attempt_has_left_for_is_not_left_for_again(
    job: RunningJob, tmp_path: Path
) -> None:
    """A recommendation that the platform never takes back, and one that moves."""
    site, settings = plugin.install(tmp_path / "site"), plugin.settings(tmp_path)
    (tmp_path / "notice-0").write_text("0 soft rebalance")
    first = job.start(job.toy(), grace_s=30.0, variables=site, settings=settings)
    assert first.wait() == 75
    assert "test/rebalance" in (tmp_path / "left-0").read_text()
    second = job.start(job.toy("--steps", "400"), variables=site, settings=settings)
    assert second.wait() == 0, second.output()
    assert "has left this machine for it already" in second.output()
    assert job.find(e.NoticeReceived, epoch=2) == []


def caught(pid: int) -> int:
    """The signals for which the process has handlers, as a mask."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt"):
            return int(line.split()[1], 16)
    return 0


@pytest.mark.parametrize("command", ["run", "supervise"])
def test_a_signal_before_anything_is_imported_is_a_notice(
    job: RunningJob, tmp_path: Path, command: str
) -> None:
    options = ["--job", job.job, "--state-dir", str(job.state_dir)]
    ran = ["run", *options, "--store", str(job.store), "--nats", job.nats, "--grace", "20"]
    marker = tmp_path / "trained"
    toy = [*ran, "--", *job.toy("--steps", "1000000")]
    shown = {
        "run": toy,
        "supervise": ["supervise", *options, "--", "touch", str(marker)],
    }[command]
    with (tmp_path / "log").open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "drainfsm", *shown], stdout=log, stderr=log, cwd=tmp_path
        )
    usr1 = 1 << (signal.SIGUSR1 - 1)
    job.wait_anyway(lambda: caught(agent.pid) & usr1 or None, what="handlers")
    assert "msgspec" not in Path(f"/proc/{agent.pid}/maps").read_text(), "first of all"
    agent.send_signal(signal.SIGUSR1)
    assert agent.wait(120) == 75, (tmp_path / "log").read_text()
    assert not marker.exists()
    if command == "run":
        assert [n.notice.native_id for n in job.find(e.NoticeReceived)] == ["SIGUSR1"]
