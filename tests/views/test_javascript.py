"""The JavaScript examples, with the official NATS client, beside the server of an attempt."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import pytest
from playwright.sync_api import expect, sync_playwright

from drainfsm.core import events as e
from drainfsm.core.codec import encode
from drainfsm.core.events import kind_of
from drainfsm.core.records import Record, subject_of
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import STREAM, connect
from drainfsm.runtime.paths import RunInfo, read_run_info, run_info_path
from drainfsm.testing.scenario import Scenario
from drainfsm_kit.logs import records_of
from drainfsm_kit.running import ROOMY, RunningJob, running_job

pytestmark = pytest.mark.node

EXAMPLES = Path(__file__).parents[2] / "examples" / "dashboards"
WAIT_MS = 60_000


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunningJob]:
    """With an embedded server."""
    with running_job(tmp_path, nats="") as running:
        yield running


@contextlib.contextmanager
def following(*where: str) -> Iterator[IO[str]]:
    """What ``follow.js`` prints."""
    with subprocess.Popen(
        ["node", "follow.js", *where], cwd=EXAMPLES, stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        try:
            yield follower.stdout
        finally:
            follower.kill()


def served_by(job: RunningJob, *, epoch: int) -> RunInfo:
    def found() -> RunInfo | None:
        info = read_run_info(job.state_dir, job.job)
        return info if info is not None and info.epoch == epoch and info.nats_url else None

    return job.wait(found, what="a server")


def test_node_follows_a_job_over_its_attempts_and_their_servers(job: RunningJob) -> None:
    agent = job.start(job.toy(), allowances=ROOMY, grace_s=120.0)
    served_by(job, epoch=1)
    path = run_info_path(job.state_dir, job.job)
    with following(str(path)) as lines:
        said = (line.rstrip("\n") for line in lines)
        assert "1 healthy_step_reached" in said
        agent.signal()
        assert agent.wait() == 75
        job.start(job.toy(), allowances=ROOMY)
        assert "1 exited" in said
        assert "2 healthy_step_reached" in said


def test_node_reads_past_what_is_no_record(own_nats_server: EmbeddedServer) -> None:
    scenario = Scenario(job_id="job")
    first = scenario.history[0]
    odd = msgspec.json.decode(encode(first))
    odd |= {"id": "odd", "follows": 1, "events": [{"kind": "new\x1b[2J\u202e"}]}

    async def publish() -> None:
        connection = await connect(own_nats_server.url, timeout_s=10)
        await connection.ensure_stream()
        js = connection.link.client.jetstream()
        for data in (b"hello", b"null", b"[1]", b'{"id": "x", "follows": 0}', b'{"events": [0]}'):
            await js.publish(subject_of(job_id="job", epoch=1), data)
        for data in (encode(first), msgspec.json.encode(odd)):
            await js.publish(subject_of(job_id="job", epoch=1), data)
        await connection.close()

    asyncio.run(publish())
    with following(own_nats_server.url, "job") as said:
        assert [said.readline() for _ in first.events] == [
            f"1 {kind_of(event)}\n" for event in first.events
        ]
        assert said.readline() == "1 new?[2J?\n"


def test_node_reads_a_stream_that_was_made_anew(own_nats_server: EmbeddedServer) -> None:
    first, second = records_of("job", 3), records_of("job", 2, epoch=2)

    async def publish(records: list[Record]) -> None:
        connection = await connect(own_nats_server.url, timeout_s=10)
        await connection.link.client.request(f"$JS.API.STREAM.DELETE.{STREAM}", b"")
        await connection.ensure_stream()
        after = 0
        for record in records:
            after = await connection.append(record, after_sequence=after)
        await connection.close()

    asyncio.run(publish(first))
    with following(own_nats_server.url, "job") as said:
        for epoch, records in ((1, first), (2, second)):
            for _ in records:
                assert said.readline() == f"{epoch} healthy_step_reached\n"
            asyncio.run(publish(second))


def test_node_says_what_it_wants() -> None:
    for argv in ([], ["nats://127.0.0.1:4222"]):
        done = subprocess.run(["node", "follow.js", *argv], cwd=EXAMPLES, capture_output=True)
        assert done.returncode == 2
        assert b"usage" in done.stderr


@contextlib.contextmanager
def pages(directory: Path) -> Iterator[str]:
    """A web server for the files there."""
    handler = functools.partial(_Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.browser
def test_a_browser_follows_over_websocket(job: RunningJob, tmp_path: Path) -> None:
    job.start(job.toy(), allowances=ROOMY)
    info = served_by(job, epoch=1)
    assert (info.stream, info.subjects) == ("DRAINFSM", f"drainfsm.v1.{job.job}.*")
    assert info.ends_with_attempt
    job.wait_for(e.HealthyStepReached)
    shutil.copy(EXAMPLES / "index.html", tmp_path)
    bundle = f"--outfile={tmp_path / 'bundle.js'}"
    command = ["node_modules/.bin/esbuild", "browser.js", "--bundle", "--format=esm", bundle]
    subprocess.run(command, cwd=EXAMPLES, check=True, capture_output=True)
    with pages(tmp_path) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.goto(f"{url}/index.html?url={info.websocket_url}")
        row = page.locator("#jobs li")
        expect(row).to_contain_text(f"{job.job}, attempt 1: healthy_step", timeout=WAIT_MS)
        job.agents[0].signal()
        expect(row).not_to_contain_text("healthy_step", timeout=WAIT_MS)
        browser.close()
