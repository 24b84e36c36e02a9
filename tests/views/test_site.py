"""The built site in a browser: it asks nobody else for anything, and its search finds pages.

``SCREENSHOTS=docs/images`` writes a picture of it.
"""

from __future__ import annotations

import functools
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from drainfsm_kit.site.build import build

pytestmark = pytest.mark.browser
WAIT_MS = 60_000
SHOTS = os.environ.get("SCREENSHOTS", "")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Into nobody's output."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site") / "site"
    assert build(folder) == []
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        made = browser.new_page(viewport={"width": 1280, "height": 900})
        made.set_default_timeout(WAIT_MS)
        yield made
        browser.close()


def test_pages_load_nothing_from_elsewhere_and_search_finds(site: str, page: Page) -> None:
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    for name in ("index.html", "docs/why.html", "docs/reference/events.html"):
        page.goto(f"{site}/{name}")
        page.wait_for_load_state("networkidle")
    if SHOTS:
        page.goto(f"{site}/docs/why.html")
        page.screenshot(path=str(Path(SHOTS) / "site.png"))
    search = page.get_by_role("textbox", name="Search")
    search.press_sequentially("exit_margin_ms")  # the page listens to keys, not to the value
    first = page.locator(".md-search-result__item a").first
    expect(first).to_be_visible(timeout=WAIT_MS)
    page.goto(str(first.evaluate("found => found.href")))
    assert "exit_margin_ms" in page.inner_text("article")
    assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []
    assert errors == []
    images = page.evaluate(
        "() => [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
    )
    assert images == []
