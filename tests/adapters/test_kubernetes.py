"""Signals, the cordon and the configuration; and kubectl, which keeps the test server honest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drainfsm.adapter import AdapterContext, JobStatus
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.errors import ConfigError
from drainfsm.runtime.agent.left_for import judged, remembered_as, remembered_deadline
from drainfsm.testing.adapter_contract import context_for
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_adapters import kubernetes
from drainfsm_adapters.kubernetes import KubernetesAdapter
from drainfsm_adapters.metadata import NoAnswerError
from drainfsm_kit.kube.levels import Level, level
from drainfsm_kit.kube.objects import Json, Key
from drainfsm_kit.kube.server import KubeServer

POD = Key("pods", "default", "llm-0")
NODE = Key("nodes", "", "node-a")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Level]:
    """One node with one pod."""
    with level("kit", tmp_path) as made:
        server_of(made).add_pod(terminationGracePeriodSeconds=40)
        yield made


def server_of(here: Level) -> KubeServer:
    assert here.server is not None
    return here.server


def context_of(here: Level, **options: str) -> AdapterContext:
    return context_for({"pod": "llm-0", "kubeconfig": str(here.kubeconfig), **options})


def adapter_on(here: Level, **options: str) -> KubernetesAdapter:
    return kubernetes.adapter(context_of(here, **options))


def while_watching(
    here: Level, act: Callable[[KubernetesAdapter], Awaitable[object]], **options: str
) -> object:
    """What ``act`` returns, once the adapter has seen its pod and node."""

    async def run() -> object:
        adapter = adapter_on(here, **options)
        async with watching(adapter):
            while adapter._pod is None or adapter._node is None:
                await asyncio.sleep(0.02)
            return await act(adapter)

    return asyncio.run(run())


# --- signals ------------------------------------------------------------------------------------

SIGTERM = Notice(
    source="signal",
    native_id="SIGTERM",
    cause=Cause.UNKNOWN,
    notice_class=NoticeClass.HARD,
    deadline_unix_ms=None,
    received_unix_ms=1_000_000,
)


async def meaning(adapter: KubernetesAdapter) -> Notice | None:
    return await adapter.interpret(SIGTERM, timeout_ms=5_000)


def left_ms(notice: object) -> int:
    assert isinstance(notice, Notice)
    assert notice.deadline_unix_ms is not None
    return notice.deadline_unix_ms - notice.received_unix_ms


def test_sigterm_of_a_deleted_pod_says_no_more_than_the_deletion(here: Level) -> None:
    server_of(here).pods.delete(POD)
    assert while_watching(here, meaning) is None


def test_sigterm_of_a_pod_that_is_not_deleted_has_the_pods_grace(here: Level) -> None:
    """A liveness probe, node pressure, the node's shutdown: the kubelet deletes nothing."""
    found = while_watching(here, meaning)
    assert left_ms(found) == 40_000
    assert isinstance(found, Notice)
    assert (found.cause, found.notice_class) == ("unknown", NoticeClass.HARD)


def test_sigterm_in_a_node_shutdown_has_the_nodes_window(here: Level) -> None:
    ready = {"type": "Ready", "status": "False", "message": "node is shutting down"}
    server_of(here).patch_node("node-a", {"status": {"conditions": [ready]}})
    found = while_watching(here, meaning, shutdown_s="15")
    assert left_ms(found) == 15_000
    assert isinstance(found, Notice)
    assert found.cause == "node_shutdown"


def test_sigterm_after_a_prestop_that_ate_the_window_has_two_seconds(here: Level) -> None:
    found = while_watching(here, meaning, prestop_s="60")
    assert left_ms(found) == 1_900


def without_access(monkeypatch: pytest.MonkeyPatch, **options: str) -> KubernetesAdapter:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr("drainfsm_adapters.kubernetes_client.SERVICE_ACCOUNT", "/nowhere")
    context = AdapterContext(
        job_id="llm", node_rank=0, node_count=1, grace_ms=120_000, options=options
    )
    return kubernetes.adapter(context)


@pytest.mark.parametrize(("prestop_s", "left"), [("0", 120_000), ("90", 30_000)])
def test_without_access_sigterm_has_the_jobs_grace(
    monkeypatch: pytest.MonkeyPatch, prestop_s: str, left: int
) -> None:
    adapter = without_access(monkeypatch, prestop_s=prestop_s)

    async def run() -> Notice | None:
        async with watching(adapter) as sink:
            await sink.until(lambda: bool(sink.silences))
            assert "no /nowhere/token and no KUBECONFIG" in sink.silences[0].detail
            return await meaning(adapter)

    assert left_ms(asyncio.run(run())) == left


def test_other_signals_are_nobodys_business_here(here: Level) -> None:
    usr1 = msgspec.structs.replace(SIGTERM, native_id="SIGUSR1")
    adapter = adapter_on(here)
    assert asyncio.run(adapter.interpret(usr1, timeout_ms=1_000)) is usr1


# --- started again in place ----------------------------------------------------------------------


def test_a_cordon_that_stands_drains_one_attempt_and_no_other(here: Level) -> None:
    """The container is started again in its pod, whose node stays cordoned."""

    async def attempt(left_for: dict[str, int | None], act: Callable[[], object]) -> Notice:
        context = msgspec.structs.replace(context_of(here), left_for=left_for)
        adapter = kubernetes.adapter(context)
        async with watching(adapter) as sink:
            while adapter._pod is None or adapter._node is None:
                await asyncio.sleep(0.02)
            act()
            await sink.until(lambda: bool(sink.notices))
            notice = sink.notices[0]
            return judged(notice, left_for, now_unix_ms=notice.received_unix_ms)

    def nothing() -> None:
        """It stands already."""

    first = asyncio.run(attempt({}, lambda: here.kubectl_now("cordon", "node-a")))
    assert not first.advisory
    left_for = {remembered_as(first): remembered_deadline(first)}
    again = asyncio.run(attempt(left_for, nothing))
    assert again.advisory
    assert again.identity == first.identity
    here.kubectl_now("uncordon", "node-a")
    assert not asyncio.run(attempt(left_for, lambda: here.kubectl_now("cordon", "node-a"))).advisory


def test_a_toleration_that_runs_does_not_begin_anew(here: Level) -> None:
    tolerated = {"key": "kit/goes", "operator": "Exists", "tolerationSeconds": 600}
    server = server_of(here)
    server.objects.remove(POD)
    server.add_pod(tolerations=[{**tolerated, "effect": "NoExecute"}])
    taint = {"key": "kit/goes", "value": "now", "effect": "NoExecute"}
    server.patch_node("node-a", {"spec": {"taints": [taint]}})

    async def deadline(left_for: dict[str, int | None]) -> tuple[str, int | None]:
        context = msgspec.structs.replace(context_of(here), left_for=left_for)
        async with watching(kubernetes.adapter(context)) as sink:
            await sink.until(lambda: bool(sink.notices))
            return sink.notices[0].identity, sink.notices[0].deadline_unix_ms

    identity, first = asyncio.run(deadline({}))
    assert first is not None
    assert asyncio.run(deadline({identity: first - 200_000})) == (identity, first - 200_000)


# --- the cordon ---------------------------------------------------------------------------------


async def cordon(adapter: KubernetesAdapter) -> str:
    return await adapter.cordon((), timeout_ms=5_000)


def test_the_own_node_is_cordoned_and_says_by_whom(here: Level) -> None:
    assert while_watching(here, cordon) == "node-a is cordoned"
    node = server_of(here).objects.get(NODE)
    assert node is not None
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"] == {"drainfsm.io/cordoned-by": "job"}


def test_a_cordoned_node_keeps_whoever_cordoned_it(here: Level) -> None:
    here.kubectl_now("cordon", "node-a")
    assert while_watching(here, cordon) == "node-a is cordoned already"
    node = server_of(here).objects.get(NODE)
    assert node is not None
    assert "annotations" not in node["metadata"]


def test_the_cordon_is_no_notice_of_its_own(here: Level) -> None:
    async def run() -> int:
        adapter = adapter_on(here)
        async with watching(adapter) as sink:
            while adapter._pod is None or adapter._node is None:
                await asyncio.sleep(0.02)
            await cordon(adapter)
            while not adapter._node.unschedulable:
                await asyncio.sleep(0.02)
            return len(sink.notices)

    assert asyncio.run(run()) == 0


def test_where_only_the_pod_goes_the_node_is_left_alone(here: Level) -> None:
    async def act(adapter: KubernetesAdapter) -> str:
        server_of(here).pods.preempt(POD)
        while adapter._pod is None or not adapter._pod.deleting:
            await asyncio.sleep(0.02)
        return await cordon(adapter)

    assert while_watching(here, act) == "only this pod goes, the node stays: not cordoned"
    node = server_of(here).objects.get(NODE)
    assert node is not None
    assert "unschedulable" not in node["spec"]


def test_a_forbidden_cordon_names_the_right(here: Level) -> None:
    server_of(here).forbidden.add(("patch", "nodes"))
    with pytest.raises(NoAnswerError, match='cannot patch resource "nodes"'):
        while_watching(here, cordon)


def test_a_cordon_that_collides_with_another_writer_is_made_again(
    here: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimistic lock: what the other one wrote survives."""
    server = server_of(here)
    kept: list[Json] = []
    plain = server.objects.get

    def get(key: Key) -> Json | None:
        found = plain(key)
        if key == NODE and not kept:
            kept.append(server.patch_node("node-a", {"metadata": {"labels": {"other": "1"}}}))
        return found

    monkeypatch.setattr(server.objects, "get", get)
    assert while_watching(here, cordon) == "node-a is cordoned"
    node = plain(NODE)
    assert node is not None
    assert node["metadata"]["labels"] == {"other": "1"}


# --- who takes the place ------------------------------------------------------------------------


def scheduled_event(here: Level, message: str) -> Json:
    """As recorded of a real scheduler."""
    victim = server_of(here).objects.get(POD)
    assert victim is not None
    about = {"kind": "Pod", "name": "llm-0", "uid": victim["metadata"]["uid"]}
    item = {"involvedObject": about, "reason": "Preempted", "message": message}
    return server_of(here).objects.create(Key("events", "default", "llm-0.18eceaa022fb875f"), item)


def preemptor(here: Level, **spec: Any) -> str:
    """The uid of a pod that waits for node-a."""
    server = server_of(here)
    made = server.add_pod("other-0", node="", **spec)
    key = Key("pods", "default", "other-0")
    server.objects.update(key, lambda pod: pod["status"].update(nominatedNodeName="node-a"))
    uid: str = made["metadata"]["uid"]
    return uid


def preempted(here: Level, said: str) -> tuple[list[Notice], list[Notice]]:
    """Notices of a preemption whose event says that: those that drain, and those on record."""

    async def run() -> RecordingSink:
        adapter = adapter_on(here)
        async with watching(adapter) as sink:
            while adapter._pod is None or adapter._node is None:
                await asyncio.sleep(0.02)
            server_of(here).pods.preempt(POD)
            await sink.until(lambda: any(not one.revocable for one in sink.notices))
            scheduled_event(here, said)
            await sink.until(lambda: any(one.advisory for one in sink.notices))
            return sink

    notices = asyncio.run(run()).notices
    return [n for n in notices if not n.advisory], [n for n in notices if n.advisory]


OF_JOB = {"containers": [{"name": "main", "env": [{"name": "DRAINFSM_JOB", "value": "prod-7"}]}]}
OF_RESPONDER = {"evictionResponders": [{"name": "drainfsm.io/prod-8"}]}


@pytest.mark.parametrize(
    ("spec", "job"), [(OF_JOB, "prod-7"), (OF_RESPONDER, "prod-8"), ({}, "default/other-0")]
)
def test_the_job_that_preempts_is_named(here: Level, spec: dict[str, Any], job: str) -> None:
    uid = preemptor(here, **spec)
    drains, noted = preempted(here, f"Preempted by pod {uid} on node node-a")
    assert {one.cause for one in drains} == {Cause.PREEMPTION}
    assert all(not one.evicted_by for one in drains)
    (one,) = noted
    assert (one.evicted_by, one.cause) == (job, Cause.PREEMPTION)
    assert one.detail == f"Preempted by pod {uid} on node node-a"


def test_a_pod_that_cannot_be_read_is_named_as_the_scheduler_does(here: Level) -> None:
    uid = "e1d3644e-9944-45b0-b13b-a0c86ef43156"
    (one,) = preempted(here, f"Preempted by pod {uid} on node node-a")[1]
    assert one.evicted_by == f"pod/{uid}"


def test_older_schedulers_name_the_pod(here: Level) -> None:
    preemptor(here, **OF_JOB)
    (one,) = preempted(here, "Preempted by default/other-0 on node node-a")[1]
    assert one.evicted_by == "prod-7"


def test_without_the_right_to_read_events_the_drain_is_the_same(
    here: Level, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(adapter: KubernetesAdapter) -> None:
        server_of(here).pods.preempt(POD)
        await until(lambda: "which job preempts this one" in caplog.text)

    server_of(here).forbidden.add(("list", "events"))
    while_watching(here, act)
    assert 'cannot list resource "events"' in caplog.text


# --- how the job stands -------------------------------------------------------------------------

RUNS = JobStatus(epoch=3, phase="idle", committed_step=238, committed_unix_ms=1_796_000_000_900)
DRAINS = msgspec.structs.replace(RUNS, phase="noticed", deadline_unix_ms=1_796_000_060_000)


def shown(here: Level) -> dict[str, str]:
    pod = server_of(here).objects.get(POD)
    assert pod is not None
    found: dict[str, str] = pod["metadata"].get("annotations", {})
    return {name.removeprefix("drainfsm.io/"): value for name, value in found.items()}


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0.02)


def test_the_pod_shows_how_the_job_stands(here: Level) -> None:
    async def act(adapter: KubernetesAdapter) -> None:
        adapter.show(DRAINS)
        await until(lambda: bool(server_of(here).objects.every("events")))
        assert shown(here) == {
            "state": "noticed",
            "attempt": "3",
            "deadline": "2026-11-30T00:54:20Z",
            "committed-step": "238",
            "committed-at": "2026-11-30T00:53:20Z",
        }
        adapter.show(RUNS)
        await until(lambda: shown(here).get("state") == "idle")
        assert "deadline" not in shown(here)

    while_watching(here, act)
    (event,) = server_of(here).objects.every("events")
    assert (event["reason"], event["type"]) == ("Draining", "Warning")
    assert event["message"] == (
        "a drain has begun; step 238 is committed; deadline 2026-11-30T00:54:20Z"
    )
    assert "Draining" in here.kubectl_now("get", "events", "-o", "json")


def test_what_a_pod_may_not_show_is_logged_once(
    here: Level, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(adapter: KubernetesAdapter) -> None:
        for deadline_unix_ms in (1, 2, 3):
            adapter.show(msgspec.structs.replace(DRAINS, deadline_unix_ms=deadline_unix_ms))
            await until(lambda: adapter._board._failed != "")
            await asyncio.sleep(0.1)

    server_of(here).forbidden.add(("patch", "pods"))
    while_watching(here, act)
    (record,) = [r for r in caplog.records if r.name == "drainfsm.adapters.kubernetes"]
    assert 'cannot patch resource "pods"' in record.getMessage()


def test_nothing_is_shown_where_nothing_is_wanted(here: Level) -> None:
    async def act(adapter: KubernetesAdapter) -> None:
        adapter.show(DRAINS)
        await asyncio.sleep(0.3)

    while_watching(here, act, annotate="false")
    assert shown(here) == {}


# --- configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"watch_s": "1"}, "watch_s = 1: take 5 to 280 seconds"),
        ({"nodes_s": "1"}, "nodes_s"),
        ({"timeout_s": "0"}, "timeout_s: must be above 0"),
        ({"node_s": "-1"}, "node_s: must not be negative"),
        ({"kubeconfig": "/nowhere"}, "/nowhere"),
        ({"pod": "$(POD_NAME)"}, "is not a name of a pod"),
    ],
)
def test_a_mistake_is_named(here: Level, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        adapter_on(here, **options)
    assert said in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "clusters: 5", "current-context: x\nclusters: []"])
def test_a_damaged_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    damaged = tmp_path / "kubeconfig"
    damaged.write_text(text)
    with pytest.raises(ConfigError, match="kubernetes: "):
        kubernetes.adapter(context_for({"kubeconfig": str(damaged), "pod": "llm-0"}))


# --- kubectl ------------------------------------------------------------------------------------


def test_kubectl_works_against_the_test_server(here: Level) -> None:
    server_of(here).add_pod("llm-1", terminationGracePeriodSeconds=1)
    assert "llm-0" in here.kubectl_now("get", "pods")
    assert "cordoned" in here.kubectl_now("cordon", "node-a")
    assert "uncordoned" in here.kubectl_now("uncordon", "node-a")
    assert "tainted" in here.kubectl_now("taint", "node", "node-a", "a=b:NoSchedule")
    assert "deleted" in here.kubectl_now("delete", "pod", "llm-0", "--grace-period=1")
    assert "drained" in here.kubectl_now("drain", "node-a", "--force", "--timeout=30s")
    assert server_of(here).objects.every("pods") == []


def test_a_disruption_budget_holds_a_drain_up(here: Level) -> None:
    budget = {
        "metadata": {},
        "spec": {"selector": {"matchLabels": {"job": "llm"}}},
        "status": {"disruptionsAllowed": 0},
    }
    server_of(here).objects.create(Key("poddisruptionbudgets", "default", "llm"), budget)
    with pytest.raises(RuntimeError, match="disruption budget"):
        here.kubectl_now("drain", "node-a", "--force", "--timeout=2s")
    assert server_of(here).objects.get(POD) is not None
