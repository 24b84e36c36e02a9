"""``drainfsm serve`` by HTTP: what it tells, whom it tells it, and that it takes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drainfsm.core.codec import encode_lines
from drainfsm.core.notice import Cause
from drainfsm.errors import ConfigError
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import connect
from drainfsm.log.journal import Journal, journal_path
from drainfsm.log.stream import STREAM
from drainfsm.testing.scenario import Scenario
from drainfsm.views.history import by_attempt, read_file
from drainfsm.views.serve.access import SECURITY, Access
from drainfsm.views.serve.hub import QUEUE_MAX, FleetView, Hub
from drainfsm.views.watch import Reader
from drainfsm_kit.served import Served, served
from drainfsm_kit.shipping import ship

HISTORY = Path(__file__).parents[1] / "replay/histories/notify_one_node_skipped_exited.jsonl"
JOB = read_file(HISTORY).records[0].job_id
MARKUP = '"><img src=x onerror=alert(1)>\x1b[2J'
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Of a recorded history, and of a job whose words are markup."""
    scenario = Scenario(job_id="hostile")
    given = scenario.notice(in_ms=60_000, native_id=MARKUP, source=MARKUP)
    scenario.when(replace(given, notice=replace(given.notice, cause=Cause(MARKUP))))
    path = tmp_path_factory.mktemp("serve") / "log.jsonl"
    path.write_bytes(HISTORY.read_bytes() + encode_lines(scenario.history) + b"no record\n")
    with served("--file", str(path), "--listen", "127.0.0.1:0") as running:
        yield running


@pytest.mark.parametrize(
    "path", ["/", f"/jobs/{JOB}", f"/jobs/{JOB}/1/1", "/static/style.css", "/nowhere", "/healthz"]
)
def test_every_answer_forbids_what_is_not_its_own(server: Served, path: str) -> None:
    code, headers, _ = server.get(path)
    assert code == (404 if path == "/nowhere" else 200)
    assert SECURITY.items() <= headers.items()
    assert "unsafe" not in headers["content-security-policy"]
    assert "server" not in headers


def test_no_page_names_anything_elsewhere(server: Served) -> None:
    for path in ("/", f"/jobs/{JOB}", f"/jobs/{JOB}/1/1", "/static/common.js", "/static/style.css"):
        page = server.get(path)[2]
        assert "style=" not in page
        assert "//" not in page.replace("http://www.w3.org/2000/svg", "").replace("// ", "")


def test_it_takes_nothing(server: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert server.get("/", method=method)[0] == 405
    assert server.get("/events", method="HEAD")[0] == 200


def test_a_page_that_leads_its_own_name_here_learns_nothing(server: Served) -> None:
    for host, code in (("evil.example", 401), ("127.0.0.1.evil.example:80", 401), ("[::1]:1", 200)):
        assert server.get("/api/fleet", headers={"host": host})[0] == code
    assert server.get("/api/fleet", headers={"host": "localhost:8075"})[0] == 200


def test_a_viewer_hears_all_and_then_what_changes(tmp_path: Path) -> None:
    scenario = Scenario(job_id="llm")
    path = journal_path(tmp_path, job_id="llm", epoch=1)
    with (
        contextlib.closing(Journal.open(path, job_id="llm", epoch=1)) as journal,
        served("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0") as server,
    ):
        journal.append(*scenario.history)
        with server.events() as fleet, server.events("?job=llm") as detail:
            rows = _until(fleet, "fleet", lambda told: told["jobs"])["jobs"]
            assert [(row["job_id"], row["phase"]) for row in rows] == [("llm", "idle")]
            scenario.when(scenario.notice(in_ms=60_000))
            journal.append(scenario.history[-1])
            told = _until(fleet, "fleet", lambda told: told["jobs"][0]["phase"] != "idle")
            assert told["whole"] is False
            assert told["jobs"][0]["deadline_unix_ms"] == scenario.state.current.deadline_unix_ms
            job = _until(detail, "job", lambda told: told["row"]["phase"] == "noticed")
            assert [one["identity"] for one in job["notices"]] == ["spot/n1"]
            assert job["marks"] == [["notice", scenario.now_unix_ms]]


def _until(events: Iterator[tuple[str, dict[str, Any]]], name: str, wanted: Any) -> dict[str, Any]:
    return next(told for kind, told in events if kind == name and wanted(told))


def test_damage_is_told_to_every_viewer(server: Served) -> None:
    with server.events() as events:
        feed = _until(events, "feed", lambda told: told["unreadable_count"])
    assert "no record" in feed["unreadable"][0]


def test_a_postmortem_has_a_stable_address_and_answers_what_if(server: Served) -> None:
    code, _, page = server.get(f"/jobs/{JOB}/1/1")
    assert code == 200
    assert "skipped" in page
    _, _, page = server.get(f"/jobs/{JOB}/1/1?what_if=grace%3D60")
    assert "the save would have fitted" in page
    code, _, page = server.get(f"/jobs/{JOB}/1/1?what_if=graze%3D60")
    assert code == 400
    assert "graze is not known" in page
    for path in (f"/jobs/{JOB}/1/2", f"/jobs/{JOB}/7/1", "/jobs/nobody/1/1"):
        assert server.get(path)[0] == 404
    code, _, replayed = server.get(f"/api/jobs/{JOB}/1/1/replay")
    assert [one["kind"] for one in json.loads(replayed)["moments"]][-1] == "exited"


def test_what_a_log_says_is_no_markup(server: Served) -> None:
    for path in (
        "/jobs/hostile/1/1",
        f"/jobs/{'%3Cimg%20src=x%3E'}",
        "/jobs/hostile/1/1?what_if=%3Cimg",
    ):
        assert "<img" not in server.get(path)[2]
    told = server.get("/api/jobs/hostile")[2]
    assert "\\u001b" not in told
    assert json.loads(told)["notices"][0]["identity"].startswith('"><img')


def test_it_is_scraped(server: Served) -> None:
    code, headers, text = server.get("/metrics")
    assert code == 200
    assert headers["content-type"].startswith("text/plain")
    assert 'drainfsm_drain_phase_duration_seconds_count{job_id="",phase="cordon"} 1.0' in text
    assert (
        f'drainfsm_drains_total{{cause="spot_interruption",job_id="{JOB}",outcome="skipped"}} 1.0'
        in text
    )


def test_with_a_token_only_who_has_it_looks(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(HISTORY.read_bytes())
    variables = {"DRAINFSM_SERVE_TOKEN": TOKEN}
    argv = ("--file", str(path), "--listen", "127.0.0.1:0")
    with served(*argv, variables=variables) as server:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "drainfsm_token=x"}):
            code, told, body = server.get("/api/fleet", headers=headers)
            assert code == 401
            assert JOB not in body
            assert told.items() >= SECURITY.items()
        assert server.get("/static/common.js")[0] == 401
        given = {"authorization": f"Bearer {TOKEN}"}
        assert server.get("/api/fleet", headers=given)[0] == 200
        assert server.get("/?token=wrong")[0] == 401
        code, told, _ = server.get(f"/jobs/{JOB}?token={TOKEN}")
        assert (code, told["location"]) == (303, f"/jobs/{JOB}")
        cookie = told["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        own = cookie.split(";")[0]
        # A host's cookies are those of all its ports, and not all are well formed.
        for others in ("", '{"a": "b"}; ', "a[b]=c; ", "drainfsm_token=x; "):
            assert server.get("/api/fleet", headers={"cookie": others + own})[0] == 200


def test_an_address_with_a_token_leads_to_the_same_one_without(tmp_path: Path) -> None:
    argv = ("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    with served(*argv, variables={"DRAINFSM_SERVE_TOKEN": TOKEN}) as server:
        for asked, answered in (
            (f"/jobs/a/1/1?what_if=grace%3D60&token={TOKEN}", "/jobs/a/1/1?what_if=grace%3D60"),
            (f"/jobs/%C3%A9?token={TOKEN}&x=", "/jobs/%C3%A9?x="),
            (f"//elsewhere.example/?token={TOKEN}", "/elsewhere.example/"),
        ):
            code, told, _ = server.get(asked)
            assert (code, told["location"]) == (303, answered)


def test_who_is_refused_is_told_what_to_do(server: Served, tmp_path: Path) -> None:
    code, told, body = server.get("/", headers={"host": "gpu7.example:8075"})
    assert code == 401
    assert "localhost" in body
    assert "DRAINFSM_SERVE_TOKEN" in body
    assert "www-authenticate" not in told
    argv = ("--state-dir", str(tmp_path), "--user-header", "X-User", "--listen", "127.0.0.1:0")
    with served(*argv) as behind_proxy:
        assert "proxy" in behind_proxy.get("/")[2]


def test_numbers_without_end_are_no_address(server: Served) -> None:
    assert server.get(f"/jobs/{JOB}/{'1' * 5_000}/1")[0] == 404
    assert server.get(f"/jobs/{JOB}/1/{'1' * 18}")[0] == 404


def test_a_trusted_proxy_says_who_looks(tmp_path: Path) -> None:
    argv = ("--state-dir", str(tmp_path), "--user-header", "X-User", "--listen", "127.0.0.1:0")
    with served(*argv) as server:
        assert server.get("/api/fleet")[0] == 401
        assert server.get("/api/fleet", headers={"x-user": ""})[0] == 401
        assert (
            server.get("/api/fleet", headers={"x-user": "ada", "host": "drains.example"})[0] == 200
        )


def test_others_are_let_in_only_if_they_are_asked_who_they_are() -> None:
    for host in ("0.0.0.0", "::", "10.1.2.3"):
        with pytest.raises(ConfigError, match="DRAINFSM_SERVE_TOKEN"):
            Access(host=host)
        Access(host=host, token=TOKEN)
        Access(host=host, user_header="X-User")
    with pytest.raises(ConfigError, match="shorter"):
        Access(host="127.0.0.1", token="short")


def test_it_ends_although_somebody_looks(tmp_path: Path) -> None:
    with (
        served("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0") as server,
        server.events() as events,
    ):
        assert next(events)[0] == "feed"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) in (0, -signal.SIGTERM)


def test_many_viewers_are_one_reader_of_the_stream(own_nats_server: EmbeddedServer) -> None:
    ship(own_nats_server.url, by_attempt(read_file(HISTORY).records))
    argv = ("--nats", own_nats_server.url, "--listen", "127.0.0.1:0")
    with served(*argv) as server, contextlib.ExitStack() as viewers:
        for _ in range(20):
            events = viewers.enter_context(server.events())
            assert _until(events, "fleet", lambda told: told["jobs"])["jobs"][0]["job_id"] == JOB
        assert asyncio.run(_consumers(own_nats_server.url)) == 1


async def _consumers(url: str) -> int:
    connection = await connect(url, timeout_s=10)
    try:
        names = await connection.link.client.request(f"$JS.API.CONSUMER.NAMES.{STREAM}", b"")
        return len(json.loads(names.data)["consumers"])
    finally:
        await connection.close()


def test_a_viewer_that_does_not_keep_up_begins_anew(tmp_path: Path) -> None:
    scenario = Scenario(job_id="llm")
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(scenario.history))

    async def run() -> None:
        reader = Reader(clock=lambda: scenario.now_unix_ms, file=path, state_dir=tmp_path)
        hub = Hub(reader)
        messages = hub.messages(None)
        assert b'"jobs":[]' in await anext(messages)
        reader.poll()
        for _ in range(QUEUE_MAX + 1):
            hub.publish()
            reader.projection.read(scenario.history[-1])
        told = await anext(messages)
        assert b'"whole":true' in told
        assert b'"job_id":"llm"' in told
        assert hub.viewer_count == 1
        await messages.aclose()
        assert hub.viewer_count == 0

    asyncio.run(run())


def test_a_viewer_for_whom_something_waits_ends_with_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(Scenario(job_id="llm").saving().history))

    async def run() -> None:
        reader = Reader(clock=lambda: 0, state_dir=tmp_path, file=path)
        hub = Hub(reader)
        messages = hub.messages(None)
        await anext(messages)
        running = asyncio.ensure_future(hub.run())
        await asyncio.sleep(0)
        reader.poll()
        hub.publish()  # waits for the viewer
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        async with asyncio.timeout(60):
            assert [told async for told in messages if not told.startswith(b": still")] == []

    asyncio.run(run())


def test_many_viewers_that_come_at_once_are_told_what_was_encoded_once(tmp_path: Path) -> None:
    scenario = Scenario(job_id="llm")
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(scenario.history))

    class CountingHub(Hub):
        encoded_count = 0

        def fleet(self, job_ids: Iterable[str] | None = None) -> FleetView:
            self.encoded_count += 1
            return super().fleet(job_ids)

    async def run() -> None:
        reader = Reader(clock=lambda: scenario.now_unix_ms, file=path, state_dir=tmp_path)
        reader.poll()
        hub = CountingHub(reader)
        viewers = [hub.messages(None) for _ in range(50)]
        told = {await anext(viewer) for viewer in viewers}
        assert len(told) == hub.encoded_count == 1
        hub.publish()
        assert hub.viewer_count == 50
        late = hub.messages(None)
        assert b'"job_id":"llm"' in await anext(late)
        for viewer in (*viewers, late):
            await viewer.aclose()

    asyncio.run(run())
