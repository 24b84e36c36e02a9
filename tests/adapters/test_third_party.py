"""The adapter of docs/adapters.md, installed as a third party installs it: we are not touched."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from drainfsm.adapter import (
    AdapterContext,
    Cordon,
    Departure,
    Interpreter,
    NoticeSink,
    NoticeSource,
    Requeuer,
    Staying,
    adapter_names,
    load_adapter,
)
from drainfsm.core import events as e
from drainfsm.core.notice import NoticeClass
from drainfsm.errors import ConfigError
from drainfsm.runtime.agent.former_adapters import of_today
from drainfsm.testing.adapter_contract import check_adapter, context_for
from drainfsm.testing.metadata import MetadataServer, TencentMetadataServer
from drainfsm.testing.metadata.server import Request, Response
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_kit.running import RunningJob, running_job

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
HELPERS = PAGE.with_name("adapter-helpers.md")


def block(mark: str) -> str:
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = [text for text in blocks if mark in text]
    return str(found)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory as pip leaves it: the module, and what tells of its entry point."""
    site = tmp_path / "site"
    info = site / "maintenance_adapter-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "maintenance_adapter.py").write_text(block("class Maintenance:"))
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: maintenance-adapter\nVersion: 1.0\n"
    )
    entry_points = block("entry-points").replace("project.entry-points.", "").replace('"', "")
    (info / "entry_points.txt").write_text(entry_points.replace("= maint", "=maint"))
    return site


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunningJob]:
    with running_job(tmp_path) as running:
        yield running


def later(seconds: int) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def test_it_is_found_by_its_name_and_keeps_the_contract(installed: Path, tmp_path: Path) -> None:
    assert "maintenance" in adapter_names()
    path = tmp_path / "maintenance"
    path.write_text(later(3_600))
    context = context_for({"path": str(path)})
    sink = asyncio.run(
        check_adapter(lambda c: load_adapter("maintenance", c), context, notice_count=1)
    )
    assert sink.notices[0].notice_class is NoticeClass.SOFT


def test_it_tells_none_unknown_and_present_apart(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "maintenance"
    first, second = later(3_600), later(7_200)

    async def run() -> RecordingSink:
        adapter = load_adapter("maintenance", context_for({"path": str(path)}))
        assert isinstance(adapter, NoticeSource)
        async with watching(adapter) as sink:
            path.write_text(first)
            await sink.until(lambda: bool(sink.notices))
            path.write_text("soon")
            await sink.until(lambda: bool(sink.unknown_now))
            assert sink.withdrawals == []
            path.write_text(second)
            await sink.until(lambda: len(sink.identities) == 2)
            path.unlink()
            await sink.until(lambda: len(sink.withdrawals) == 2)
            return sink

    sink = asyncio.run(run())
    assert sink.identities == [f"maintenance/{first}", f"maintenance/{second}"]
    assert sink.standing == {}


def test_the_test_of_the_page_passes(installed: Path, tmp_path: Path) -> None:
    names: dict[str, object] = {}
    exec(block("def test_maintenance_keeps_the_contract"), names)
    test = names["test_maintenance_keeps_the_contract"]
    assert callable(test)
    test(tmp_path)


def test_it_needs_no_packaging(job: RunningJob, site: Path, tmp_path: Path) -> None:
    """``--source module:factory`` finds it by PYTHONPATH, or where it is called."""
    path = tmp_path / "maintenance"
    path.write_text(later(12))
    for entry in site.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
    agent = job.start(
        job.toy(),
        variables={"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
        settings={
            "source": ["maintenance_adapter:Maintenance"],
            "adapters": {"maintenance_adapter": {"path": str(path)}},
        },
    )
    assert agent.wait() == 75
    assert job.find(e.NoticeReceived)[0].notice.source == "maintenance"


@pytest.mark.parametrize("name", ["no_such_module:X", "drainfsm_adapters.aws:no_such_factory"])
def test_a_module_or_factory_that_is_not_there_is_told_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--source {name}: "):
        load_adapter(name, context_for())


class Former:
    """As adapters were written for 0.1: one class for everything."""

    def __init__(self, context: AdapterContext) -> None:
        self.told: list[tuple[bool, int]] = []

    async def watch(self, sink: NoticeSink) -> None:
        await asyncio.Event().wait()

    async def cordon(self, nodes: tuple[str, ...], *, timeout_ms: int) -> str:
        raise NotImplementedError("no cordon")

    async def left(self, *, requeue: bool, timeout_ms: int) -> str:
        self.told.append((requeue, timeout_ms))
        return "acknowledged"

    async def stay(self) -> None:
        self.told.append((False, 0))


def test_an_adapter_of_the_former_shape_has_one_release_of_grace() -> None:
    former = Former(context_for())
    with pytest.warns(DeprecationWarning, match=r"adapter old: .* takes a Departure now"):
        adapter = of_today("old", former)
    assert isinstance(adapter, NoticeSource)
    assert isinstance(adapter, Cordon)
    assert isinstance(adapter, Requeuer)
    assert isinstance(adapter, Staying)
    assert not isinstance(adapter, Interpreter)
    departure = Departure(requeue=True, timeout_ms=7, left_for=frozenset({"a/b"}))
    assert asyncio.run(adapter.left(departure)) == "acknowledged"
    assert former.told == [(True, 7)]


def test_an_adapter_of_today_is_taken_as_it_is() -> None:
    adapter: Any = object()
    assert of_today("new", adapter) is adapter


def test_a_job_drains_for_it(job: RunningJob, site: Path, tmp_path: Path) -> None:
    path = tmp_path / "maintenance"
    agent = job.start(
        job.toy(),
        variables={"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
        settings={"source": ["maintenance"], "adapters": {"maintenance": {"path": str(path)}}},
    )
    job.wait_for(e.HealthyStepReached)
    path.write_text(later(12))
    assert agent.wait() == 75
    assert job.find(e.NoticeReceived)[0].notice.source == "maintenance"
    assert job.find(e.ManifestPublished) != []


def test_an_adapter_that_is_not_installed_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="maintenance: no such adapter is installed"):
        load_adapter("maintenance", context_for())


def test_the_library_example_hears_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {"__name__": "example"}
    exec(block("async def first_notice"), names)
    first_notice = names["first_notice"]
    assert callable(first_notice)
    with TencentMetadataServer() as server:
        monkeypatch.setenv(server.variable, server.endpoint)
        server.interrupt(in_ms=60_000)
        assert asyncio.run(first_notice("tencent")).notices[0].source == "tencent"


class RackServer(MetadataServer):
    """The service of docs/adapter-helpers.md."""

    variable = "DRAINFSM_RACK_METADATA_ENDPOINT"
    off_at = ""

    def answer(self, request: Request) -> Response:
        off_at = f', "off_at": "{self.off_at}"' if self.off_at else ""
        return Response(body=f'{{"rack": "r7"{off_at}}}'.encode())


def test_the_source_of_the_page_of_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", HELPERS.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "rack"}
    exec(blocks[0], names)
    server = RackServer()

    async def story() -> RecordingSink:
        context = context_for({"poll_s": "1"})
        await check_adapter(names["adapter"], context)
        async with watching(names["adapter"](context)) as sink:
            await asyncio.sleep(1.5)
            for at in (later(3_600), later(1_800)):
                server.off_at = at
                count = len(sink.notices) + 1
                await sink.until(lambda count=count: len(sink.notices) == count)  # type: ignore[misc]
            server.off_at = ""
            await sink.until(lambda: bool(sink.withdrawals))
            return sink

    with server:
        monkeypatch.setenv(server.variable, server.endpoint)
        sink = asyncio.run(story())
    assert sink.identities == ["rack/r7/power"]
    assert [notice.notice_class for notice in sink.notices] == [NoticeClass.SOFT] * 2
    assert not sink.notices[0].standing
