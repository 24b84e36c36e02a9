"""The dashboard in a real browser: live, over restarts, with many ranks, and by axe's rules.

``SCREENSHOTS=docs/images`` writes the pictures of docs/dashboards.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from drainfsm.core import events as e
from drainfsm.core.codec import encode_lines
from drainfsm.core.notice import Cause
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.journal import Journal, journal_path
from drainfsm.testing.scenario import Scenario
from drainfsm_kit.running import ROOMY, running_job
from drainfsm_kit.served import Served, served

pytestmark = pytest.mark.browser

WAIT_MS = 60_000
PHONE, DESK = {"width": 390, "height": 800}, {"width": 1280, "height": 900}
MARKUP = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
SKIPPED = Path(__file__).parents[1] / "replay/histories/notify_one_node_skipped_exited.jsonl"
DEMO = Path(__file__).parent / "data/demo.jsonl"
SHOTS = os.environ.get("SCREENSHOTS", "")
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Without a sandbox: as root, and in containers, there is none to be had.
        made = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield made
        made.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Makes pages; none of them may complain, ask elsewhere, or open a dialog."""
    complaints: list[str] = []
    with contextlib.ExitStack() as contexts:

        def make(*, dark: bool = False, size: dict[str, int] = DESK) -> Page:
            context = browser.new_context(
                viewport={"width": size["width"], "height": size["height"]},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
            )
            contexts.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("dialog", lambda dialog: complaints.append(dialog.message))
            page.on(
                "console",
                lambda said: (
                    complaints.append(said.text)
                    if said.type == "error" and "Failed to load resource" not in said.text
                    else None
                ),
            )
            page.on(
                "request",
                lambda asked: (
                    None
                    if asked.url.startswith("http://127.0.0.1:")
                    else complaints.append(asked.url)
                ),
            )
            return page

        yield make
    assert complaints == []


def accessible(page: Page) -> None:
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png")


def test_a_real_drain_is_followed_to_its_end(
    opened: Callable[..., Page], nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    """From the notice to the postmortem, live, in the fleet and on the job's page."""
    with (
        served("--nats", nats_server.url, "--listen", "127.0.0.1:0") as server,
        running_job(tmp_path, nats=nats_server.url) as job,
    ):
        fleet, detail = opened(), opened()
        fleet.goto(server.url)
        detail.goto(f"{server.url}/jobs/{job.job}")
        expect(detail.locator("#unknown")).to_be_visible()
        slowly = job.toy("--save-s", "12")  # time enough for what is seen of it
        agent = job.start(slowly, allowances=ROOMY, grace_s=120.0)
        row = fleet.locator("#jobs tbody tr", has_text=job.job)
        expect(row).to_contain_text("running")
        agent.signal()
        expect(row.locator("td").nth(1)).to_contain_text("save")
        expect(detail.locator("#countdown")).to_be_visible()
        accessible(detail)
        assert agent.wait() == 75
        job.wait_for(e.Exited)
        drain = detail.locator("#drains tbody tr")
        expect(drain).to_contain_text("committed")
        expect(row).to_contain_text("wants to be started again")
        accessible(fleet)
        drain.get_by_role("link").click()
        expect(detail.get_by_role("heading", level=1)).to_contain_text("attempt 1, drain 1")
        expect(detail.locator("#moment")).to_contain_text("exited")
        detail.locator("#position").press("Home")
        expect(detail.locator("#moment")).to_contain_text("notice_received")
        accessible(detail)


def test_the_postmortem_of_a_skipped_save(opened: Callable[..., Page]) -> None:
    with served("--file", str(SKIPPED), "--listen", "127.0.0.1:0") as server:
        page = opened()
        page.goto(f"{server.url}/jobs/llm/1/1")
        page.get_by_label("What if").fill("grace=60")
        page.get_by_role("button", name="Evaluate again").click()
        expect(page.locator("article")).to_contain_text("the save would have fitted")
        page.get_by_role("button", name="Play").click()
        expect(page.locator("#moment")).to_contain_text("exited")
        accessible(page)
        shot(page, "serve-postmortem")


def test_the_demo_s_drain_while_it_is_saved(opened: Callable[..., Page], tmp_path: Path) -> None:
    """The log of `make demo` up to there, as if it were now."""
    lines, now_unix_ms = [], time.time_ns() // 1_000_000
    for line in DEMO.read_bytes().splitlines(keepends=True):
        lines.append(line)
        if b"save_started" in line:
            break
    later_ms = now_unix_ms - int(re.findall(rb'"at_unix_ms":(\d+)', lines[-1])[0])
    path = tmp_path / "demo.jsonl"
    path.write_bytes(
        re.sub(
            rb'(unix_ms":)(\d+)',
            lambda found: found[1] + str(int(found[2]) + later_ms).encode(),
            b"".join(lines),
        )
    )
    with served("--file", str(path), "--listen", "127.0.0.1:0") as server:
        page = opened()
        page.goto(f"{server.url}/jobs/demo")
        expect(page.locator("#countdown")).to_be_visible()
        expect(page.locator("#ranks-told")).to_contain_text("4")
        accessible(page)
        shot(page, "serve-demo")


def writer(directory: Path, scenario: Scenario) -> Journal:
    job_id = scenario.state.attempt.job_id
    path = journal_path(directory, job_id=job_id, epoch=1)
    journal = Journal.open(path, job_id=job_id, epoch=1)
    journal.append(*scenario.history)
    return journal


def big() -> Scenario:
    """16,384 ranks; half of the nodes hold."""
    scenario = Scenario(job_id="big", node_count=2_048, ranks_per_node=8, save_bytes=10**9)
    scenario.now_unix_ms = time.time_ns() // 1_000_000
    scenario.history[:] = [
        replace(record, at_unix_ms=scenario.now_unix_ms) for record in scenario.history
    ]
    scenario.given(scenario.notice(in_ms=900_000), scenario.cordoned(), scenario.positions())
    return scenario.given(*(scenario.quiesced(node) for node in range(1_024)))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_sixteen_thousand_ranks_on_a_phone(
    opened: Callable[..., Page], tmp_path: Path, dark: bool
) -> None:
    writer(tmp_path, big()).close()
    with served("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0") as server:
        page = opened(dark=dark, size=PHONE)
        page.goto(f"{server.url}/jobs/big")
        expect(page.locator("#ranks-told")).to_have_text("16384 ranks: 8192 holding, 8192 waiting")
        page.locator("#ranks").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#rank-chosen")).to_have_text("Rank 1 on node 0: holding")
        expect(page.locator("#events tbody tr").first).to_contain_text("stop_step_agreed")
        accessible(page)
        if dark:
            page.set_viewport_size({"width": PHONE["width"], "height": 1_200})
            page.evaluate("scrollTo(0, 0)")
            shot(page, "serve-phone")
        else:
            page.set_viewport_size({"width": DESK["width"], "height": 1_000})
            page.evaluate("scrollTo(0, 0)")
            shot(page, "serve-drain")
            page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"]
        page.goto(server.url)
        expect(page.locator("#jobs tbody tr")).to_contain_text("big")
        accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_it_says_that_it_is_stale_and_goes_on_by_itself(
    opened: Callable[..., Page], tmp_path: Path
) -> None:
    scenario = Scenario(job_id="llm")
    journal = writer(tmp_path, scenario)
    server = Served("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    again = None
    try:
        page = opened()
        page.goto(server.url)
        expect(page.locator("#feed")).to_contain_text("live from")
        server.stop()
        expect(page.locator("#feed")).to_contain_text("STALE: no connection")
        expect(page.locator("#feed")).to_have_class("stale")
        scenario.when(scenario.notice(in_ms=60_000))
        journal.append(scenario.history[-1])
        again = Served("--state-dir", str(tmp_path), "--listen", server.address)
        expect(page.locator("#feed")).to_contain_text("live from")
        expect(page.locator("#jobs tbody tr")).to_contain_text("noticed")
    finally:
        journal.close()
        server.stop()
        if again is not None:
            again.stop()


def test_a_page_that_the_browser_kept_follows_again(
    opened: Callable[..., Page], tmp_path: Path
) -> None:
    """Whoever goes back may get the page as it was left, with all that it had closed."""
    scenario = Scenario(job_id="llm")
    journal = writer(tmp_path, scenario)
    with served("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0") as server:
        page = opened()
        page.goto(server.url)
        expect(page.locator("#feed")).to_contain_text("live from")
        page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))")
        page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
        scenario.when(scenario.notice(in_ms=60_000))
        journal.append(scenario.history[-1])
        expect(page.locator("#jobs tbody tr")).to_contain_text("noticed")
    journal.close()


def test_a_page_of_an_older_server_says_so(opened: Callable[..., Page], tmp_path: Path) -> None:
    versions = iter(["1.0", "1.0"])

    def answer(route: Route) -> None:
        told = {
            "version": next(versions, "2.0"),
            "now_unix_ms": 0,
            "source": "x",
            "stale_since_unix_ms": None,
            "error": "",
            "unreadable_count": 0,
            "unreadable": [],
        }
        body = f"retry: 100\n\nevent: feed\ndata: {json.dumps(told)}\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    with served("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0") as server:
        page = opened()
        page.route("**/events", answer)
        page.goto(server.url)
        expect(page.locator("#feed")).to_contain_text("another version now: reload")


@pytest.mark.parametrize("path", ["/", "/jobs/demo", "/jobs/demo/2/1", "/jobs/nobody"])
def test_at_a_zoom_of_four_hundred_percent_nothing_is_cut_off(
    opened: Callable[..., Page], path: str
) -> None:
    with served("--file", str(DEMO), "--listen", "127.0.0.1:0") as server:
        page = opened(size={"width": 320, "height": 256})
        page.goto(f"{server.url}{path}")
        expect(page.locator("#feed")).to_contain_text("live from")
        if path == "/jobs/demo":
            expect(page.locator("#drains tbody tr")).to_have_count(2)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        accessible(page)


@pytest.mark.parametrize("name", ["x" * 20_000, "\u202ereversed\u200b\x1b[2J", "\U0001f680" * 300])
def test_names_of_any_kind_leave_the_page_in_shape(
    opened: Callable[..., Page], tmp_path: Path, name: str
) -> None:
    """In 320 pixels, as a page of 1,280 has at a zoom of 400 %."""
    scenario = Scenario(job_id=name)
    given = scenario.notice(in_ms=60_000, native_id=name, source=name)
    scenario.when(replace(given, notice=replace(given.notice, cause=Cause(name), detail=name)))
    scenario.given(scenario.cordoned())
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(scenario.history))
    with served("--file", str(path), "--listen", "127.0.0.1:0") as server:
        page = opened(size={"width": 320, "height": 256})
        page.goto(server.url)
        expect(page.locator("#jobs tbody tr")).to_contain_text("noticed")
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        assert "\u202e" not in page.locator("body").inner_text()
        accessible(page)


def test_a_server_of_the_stream_that_is_away_is_said(
    opened: Callable[..., Page], tmp_path: Path
) -> None:
    with served("--nats", "nats://127.0.0.1:9", "--listen", "127.0.0.1:0") as server:
        page = opened()
        page.goto(server.url)
        expect(page.locator("#feed")).to_contain_text("STALE for")
        expect(page.locator("#empty")).to_be_visible()
        accessible(page)
        page.goto(f"{server.url}/jobs/llm/1/1")
        expect(page.locator("main")).to_contain_text("cannot be read now")
        accessible(page)


def test_words_of_a_log_stay_words(opened: Callable[..., Page], tmp_path: Path) -> None:
    scenario = Scenario(job_id=MARKUP)
    given = scenario.notice(in_ms=60_000, native_id=MARKUP, source=MARKUP)
    notice = replace(given.notice, cause=Cause(MARKUP), detail=MARKUP)
    scenario.when(replace(given, notice=notice))
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(scenario.history))
    with served("--file", str(path), "--listen", "127.0.0.1:0") as server:
        page = opened()
        page.goto(server.url)
        link = page.locator("#jobs tbody a")
        expect(link).to_contain_text("<img src=x")
        name = quote(MARKUP.replace("/", ""), safe="")
        page.goto(f"{server.url}/jobs/{name}")
        expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x")
        assert page.locator("img, main script").count() == 0


def test_the_keyboard_reaches_everything(opened: Callable[..., Page], tmp_path: Path) -> None:
    writer(tmp_path, Scenario(job_id="llm")).close()
    with served("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0") as server:
        page = opened()
        page.goto(server.url)
        expect(page.locator("#jobs tbody tr")).to_have_count(1)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.locator("#filter").fill("nothing like it")
        expect(page.locator("#jobs tbody tr")).to_have_count(0)
        page.locator("#filter").fill("LLM")
        expect(page.locator("#jobs tbody tr")).to_have_count(1)
        page.locator("#jobs tbody a").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("llm")
