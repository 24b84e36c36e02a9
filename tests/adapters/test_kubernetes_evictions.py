"""EvictionRequest: heard, answered in the form that the API server checks, and completed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import msgspec
import pytest

from drainfsm.adapter import Departure, JobStatus
from drainfsm.core.notice import NoticeClass
from drainfsm.testing.adapter_contract import context_for
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_adapters import kubernetes, kubernetes_evictions
from drainfsm_adapters.kubernetes import KubernetesAdapter
from drainfsm_adapters.kubernetes_evictions import eviction_of, observed_of
from drainfsm_adapters.metadata import NoAnswerError
from drainfsm_kit.kube.objects import Json, Key, read
from drainfsm_kit.kube.server import KubeServer

AHEAD_S = 7.3
OURS = "drainfsm.io/llm"
Story = Callable[[KubernetesAdapter, RecordingSink, KubeServer], Awaitable[None]]
DRAINS = JobStatus(epoch=1, phase="noticed", committed_step=238)


@pytest.fixture
def server() -> Iterator[KubeServer]:
    with KubeServer(ahead_s=AHEAD_S) as made:
        made.add_node()
        responders = [
            {"name": "example.com/other", "priority": 110},
            {"name": OURS, "priority": 1_000},
        ]
        made.add_pod(evictionResponders=responders)
        made.add_pod("llm-1", evictionResponders=responders)
        yield made


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_evictions, "PACE_S", 0.2)
    monkeypatch.setattr(kubernetes_evictions, "HEARTBEAT_S", 0.4)


def play(server: KubeServer, tmp_path: Path, story: Story, **options: str) -> RecordingSink:
    config = str(server.kubeconfig(tmp_path / "kubeconfig"))
    given = {"pod": "llm-0", "kubeconfig": config, "unknown_s": "0.5", **options}

    async def run() -> RecordingSink:
        adapter = kubernetes.adapter(context_for(given))
        async with watching(adapter) as sink:
            await story(adapter, sink, server)
            return sink

    return asyncio.run(run())


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0.02)


def item(server: KubeServer, name: str) -> Json:
    found = server.objects.get(Key("evictions", "default", name))
    assert found is not None
    return found


def states(server: KubeServer, name: str) -> list[str]:
    return [one["state"] for one in item(server, name)["status"]["targetResponders"]]


def test_a_request_is_heard_and_answered_and_can_be_withdrawn(
    server: KubeServer, tmp_path: Path
) -> None:
    async def story(adapter: KubernetesAdapter, sink: RecordingSink, server: KubeServer) -> None:
        await until(lambda: adapter._pod)
        name = server.evictions.request("llm-0")
        await until(lambda: "heartbeatTime" in server.evictions.said(name))
        said = server.evictions.said(name)
        assert said["message"] == "job job has heard it"
        assert read(said["expectedCompletionTime"]) == read(said["startTime"]) + 90
        deadline = sink.notices[0].deadline_unix_ms
        assert deadline is not None
        true = (read(said["startTime"]) - AHEAD_S + 90) * 1_000
        assert abs(deadline - true) <= 1_000 + sink.notices[0].clock_skew_ms
        adapter.show(msgspec.structs.replace(DRAINS, deadline_unix_ms=deadline - 30_000))
        await until(lambda: "noticed" in server.evictions.said(name)["message"])
        said = server.evictions.said(name)
        assert said["message"] == "job job: noticed; step 238 is committed"
        assert 58 <= read(said["expectedCompletionTime"]) - read(said["startTime"]) <= 61
        whole = {"apiVersion": "lifecycle.k8s.io/v1alpha1", "kind": "Eviction"}
        kubernetes_validate.validate({**item(server, name), **whole}, "1.37", strict=True)
        server.evictions.withdraw(name)
        await until(lambda: sink.withdrawals)

    sink = play(server, tmp_path, story, node_s="90")
    (notice,) = sink.notices
    assert (notice.cause, notice.notice_class) == ("eviction", NoticeClass.SOFT)
    assert notice.assumed
    assert "example.com/maintenance" in notice.detail


def test_heartbeats_go_on_while_nothing_changes(server: KubeServer, tmp_path: Path) -> None:
    async def story(adapter: KubernetesAdapter, sink: RecordingSink, server: KubeServer) -> None:
        await until(lambda: adapter._pod)
        server.evictions.request("llm-0")
        await until(lambda: sum(method == "PATCH" for method, _ in server.requests) >= 3)

    play(server, tmp_path, story, annotate="false")


def test_what_the_job_has_left_for_is_completed_and_the_pod_is_evicted(
    server: KubeServer, tmp_path: Path
) -> None:
    async def story(adapter: KubernetesAdapter, sink: RecordingSink, server: KubeServer) -> None:
        await until(lambda: adapter._pod)
        name = server.evictions.request("llm-0")
        await until(lambda: "heartbeatTime" in server.evictions.said(name))
        other = Departure(requeue=True, left_for=frozenset({"signal/x"}), timeout_ms=5_000)
        assert await adapter.left(other) == ""
        assert states(server, name)[0] == "Active"
        left = frozenset({sink.notices[0].identity})
        departure = Departure(requeue=True, left_for=left, timeout_ms=5_000)
        assert "the job has left" in await adapter.left(departure)
        assert states(server, name) == ["Completed", "Active", "Inactive"]
        assert await adapter.left(departure) == "", "once"

    play(server, tmp_path, story)


def test_evictions_of_other_pods_of_the_job_are_not_ours(
    server: KubeServer, tmp_path: Path
) -> None:
    async def story(adapter: KubernetesAdapter, sink: RecordingSink, server: KubeServer) -> None:
        await until(lambda: adapter._pod)
        other = server.evictions.request("llm-1")
        own = server.evictions.request("llm-0")
        await until(lambda: "heartbeatTime" in server.evictions.said(own))
        assert "heartbeatTime" not in server.evictions.said(other)
        server.objects.remove(Key("evictions", "default", own))
        await until(lambda: sink.withdrawals)

    assert len(play(server, tmp_path, story).identities) == 1


@pytest.mark.parametrize(
    ("verb", "resource", "unknown"),
    [("list", "evictions", True), ("patch", "evictions/status", False)],
)
def test_a_missing_right_is_named(
    server: KubeServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    verb: str,
    resource: str,
    unknown: bool,
) -> None:
    server.forbidden.add((verb, resource))

    async def story(adapter: KubernetesAdapter, sink: RecordingSink, server: KubeServer) -> None:
        server.evictions.request("llm-0")
        await until(lambda: sink.silences if unknown else sink.notices and caplog.records)
        if not unknown:
            left = frozenset({sink.notices[0].identity})
            with pytest.raises(NoAnswerError, match="cannot patch"):
                await adapter.left(Departure(requeue=True, left_for=left, timeout_ms=5_000))

    sink = play(server, tmp_path, story)
    told = [silence.detail for silence in sink.silences] + [r.getMessage() for r in caplog.records]
    assert any(f'cannot {verb} resource "{resource}"' in one for one in told)


def test_a_pod_that_names_no_responder_of_ours_asks_for_none(
    server: KubeServer, tmp_path: Path
) -> None:
    server.objects.remove(Key("pods", "default", "llm-0"))
    server.add_pod(evictionResponders=[{"name": "example.com/other", "priority": 10}])

    async def story(adapter: KubernetesAdapter, sink: RecordingSink, server: KubeServer) -> None:
        await until(lambda: adapter._node)
        await asyncio.sleep(0.2)

    play(server, tmp_path, story)
    assert not [path for _, path in server.requests if "lifecycle" in path]


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"status": 5},
        {"status": {"targetResponders": [{"name": OURS, "state": 7}], "responders": "x"}},
        {"status": {"targetResponders": [{"name": OURS, "state": "Exploded"}]}},
    ],
)
def test_what_says_nothing_is_no_notice(damaged: Json) -> None:
    assert observed_of(eviction_of(damaged, OURS), lead_ms=1) is None


def test_without_its_start_the_grace_counts() -> None:
    status = {"targetResponders": [{"name": OURS, "state": "Active"}]}
    found = observed_of(eviction_of({"status": status}, OURS), lead_ms=1)
    assert found is not None
    assert found.stated_unix_ms is None
