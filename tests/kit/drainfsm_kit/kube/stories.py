"""How pods and nodes end, told by kubectl to the adapter, on whatever level there is.

``python -m drainfsm_kit.kube.stories [LEVEL…]`` prints the table of docs/kubernetes.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from drainfsm.adapter import AdapterContext
from drainfsm.core.notice import NoticeClass
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_adapters import kubernetes
from drainfsm_kit.kube.levels import NAMES, STAYS, Level, image, level, missing
from drainfsm_kit.kube.objects import read
from drainfsm_kit.kube.server import KubeServer

HARD, SOFT = NoticeClass.HARD, NoticeClass.SOFT
GRACE_S = 30


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a story did, for those who check what came of it."""

    deadline_unix_ms: int | None = None
    """The true one of what stands in the end, by our clock."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    classes: tuple[NoticeClass, ...]
    """Of what stands in the end, each notice once."""

    cause: str
    withdrawn: int = 0
    notices: int = 1
    """Identities."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    level: str
    story: str
    notices: int
    withdrawn: int
    classes: tuple[str, ...]
    cause: str
    error_ms: int | None
    skew_ms: int
    problem: str = ""


Story = Callable[[Level, str, RecordingSink], Awaitable[Told]]


async def _hard(sink: RecordingSink) -> None:
    await sink.until(lambda: any(n.notice_class is HARD for n in sink.notices), timeout_s=60)


async def _eviction(level: Level, pod: str, sink: RecordingSink) -> Told:
    path = f"/api/v1/namespaces/default/pods/{pod}/eviction"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    await level.kubectl("create", "--raw", path, "-f", "-", given=body)
    return Told(deadline_unix_ms=await level.deadline_unix_ms(pod))


async def _preemption(level: Level, pod: str, sink: RecordingSink) -> Told:
    """As the scheduler does it: the condition, and milliseconds later the deletion."""
    await level.disrupt(pod, "PreemptionByScheduler")
    await level.kubectl("delete", "pod", pod, "--wait=false")
    return Told(deadline_unix_ms=await level.deadline_unix_ms(pod))


async def _displaced(level: Level, pod: str, sink: RecordingSink) -> Told:
    """By the scheduler itself: a pod of a higher priority wants the node for itself."""
    name = f"kit-{uuid.uuid4().hex[:8]}"
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1_000}
    alone = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"job": "llm"}},
    }
    spec = {
        "priorityClassName": name,
        "nodeSelector": {"kubernetes.io/hostname": level.node},
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}
        },
        "containers": [{"name": "main", "image": image(), "command": STAYS}],
    }
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    create = ("create", "--validate=false", "-f", "-")
    await level.kubectl(*create, given={**priority, "metadata": {"name": name}})
    try:
        await level.kubectl(*create, given=item)
        await _hard(sink)
        return Told(deadline_unix_ms=await level.deadline_unix_ms(pod))
    finally:
        await level.kubectl("delete", "pod", name, "--force", "--grace-period=0")
        await level.kubectl("delete", "priorityclass", name)


async def _delete(level: Level, pod: str, sink: RecordingSink) -> Told:
    await level.kubectl("delete", "pod", pod, "--wait=false")
    return Told(deadline_unix_ms=await level.deadline_unix_ms(pod))


async def _shortened(level: Level, pod: str, sink: RecordingSink) -> Told:
    await level.kubectl("delete", "pod", pod, "--wait=false")
    await _hard(sink)
    await level.kubectl("delete", "pod", pod, "--wait=false", f"--grace-period={GRACE_S - 12}")
    shorter = await level.deadline_unix_ms(pod)
    await sink.until(lambda: len({n.deadline_unix_ms for n in sink.notices}) > 1)
    return Told(deadline_unix_ms=shorter)


async def _forced(level: Level, pod: str, sink: RecordingSink) -> Told:
    began = _now_unix_ms()
    await level.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    return Told(deadline_unix_ms=(began + _now_unix_ms()) // 2 + 1_900)


async def _tainted(level: Level, pod: str, sink: RecordingSink) -> Told:
    """Tolerated for four seconds; then the taint manager deletes it."""
    await level.kubectl("taint", "node", level.node, "kit/goes=now:NoExecute")
    await sink.until(lambda: bool(sink.notices))
    await _hard(sink)
    return Told(deadline_unix_ms=await level.deadline_unix_ms(pod))


async def _taint_withdrawn(level: Level, pod: str, sink: RecordingSink) -> Told:
    await level.kubectl("taint", "node", level.node, "kit/stays=now:NoExecute")
    await sink.until(lambda: bool(sink.notices))
    await level.kubectl("taint", "node", level.node, "kit/stays:NoExecute-")
    await sink.until(lambda: bool(sink.withdrawals))
    return Told()


async def _spot(level: Level, pod: str, sink: RecordingSink) -> Told:
    """Fifteen seconds, whatever the pod's grace says."""
    began = _now_unix_ms()
    await level.kubectl(
        *("taint", "node", level.node, "cloud.google.com/impending-node-termination=:NoSchedule")
    )
    await _hard(sink)
    return Told(deadline_unix_ms=(began + _now_unix_ms()) // 2 + 15_000)


async def _drained(level: Level, pod: str, sink: RecordingSink) -> Told:
    """The cordon first, and then the eviction; kubectl waits for the pod, but not for long."""
    drain = ("drain", level.node, "--force", "--ignore-daemonsets", "--pod-selector=job=llm")
    with contextlib.suppress(RuntimeError):
        await level.kubectl(*drain, "--timeout=3s")
    await _hard(sink)
    return Told(deadline_unix_ms=await level.deadline_unix_ms(pod))


async def _autoscaled(level: Level, pod: str, sink: RecordingSink) -> Told:
    """The autoscaler taints, and then evicts."""
    taint = f"ToBeDeletedByClusterAutoscaler={int(time.time())}:NoSchedule"
    await level.kubectl("taint", "node", level.node, taint)
    await sink.until(lambda: bool(sink.notices))
    return await _eviction(level, pod, sink)


async def _karpenter(level: Level, pod: str, sink: RecordingSink) -> Told:
    await level.make_claim()
    await level.kubectl("taint", "node", level.node, "karpenter.sh/disrupted=:NoSchedule")
    await sink.until(lambda: bool(sink.notices))
    return await _eviction(level, pod, sink)


async def _karpenter_deadline(level: Level, pod: str, sink: RecordingSink) -> Told:
    claim = await level.make_claim()
    await level.kubectl("taint", "node", level.node, "karpenter.sh/disrupted=:NoSchedule")
    await sink.until(lambda: bool(sink.notices))
    ends_unix_s = int(time.time() + level.ahead_s) + 600
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends_unix_s))
    await level.kubectl(
        *("annotate", "nodeclaim", claim["metadata"]["name"]),
        f"karpenter.sh/nodeclaim-termination-timestamp={written}",
    )
    await _hard(sink)
    return Told(deadline_unix_ms=round((ends_unix_s - level.ahead_s) * 1_000))


async def _shutdown(level: Level, pod: str, sink: RecordingSink) -> Told:
    """What a kubelet writes that logind has told of a shutdown."""
    ready = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
    ready["message"] = "node is shutting down"
    began = _now_unix_ms()
    await level.patch_node({"status": {"conditions": [ready]}}, subresource="status")
    await sink.until(lambda: bool(sink.notices))
    return Told(deadline_unix_ms=(began + _now_unix_ms()) // 2 + 15_000)


async def _uncordoned(level: Level, pod: str, sink: RecordingSink) -> Told:
    await level.kubectl("cordon", level.node)
    await sink.until(lambda: bool(sink.notices))
    await level.kubectl("uncordon", level.node)
    await sink.until(lambda: bool(sink.withdrawals))
    return Told()


async def _stale_disruption(level: Level, pod: str, sink: RecordingSink) -> Told:
    await level.disrupt(pod, "EvictionByEvictionAPI")
    await sink.until(lambda: bool(sink.notices))
    await level.disrupt(pod, "EvictionByEvictionAPI", status="False")
    await sink.until(lambda: bool(sink.withdrawals))
    return Told()


async def _requested(level: Level, pod: str, sink: RecordingSink) -> Told:
    """Somebody asks for the pod to go: as if it went ``node_s`` after it was asked for."""
    server = _server_of(level)
    name = server.evictions.request(pod)
    await sink.until(lambda: bool(sink.notices))
    started = read(server.evictions.said(name)["startTime"]) - level.ahead_s
    return Told(deadline_unix_ms=round(started * 1_000) + 300_000)


async def _request_withdrawn(level: Level, pod: str, sink: RecordingSink) -> Told:
    server = _server_of(level)
    name = server.evictions.request(pod)
    await sink.until(lambda: bool(sink.notices))
    server.evictions.withdraw(name)
    await sink.until(lambda: bool(sink.withdrawals))
    return Told()


def _server_of(level: Level) -> KubeServer:
    assert level.server is not None
    return level.server


def _tolerating(key: str, seconds: int) -> dict[str, object]:
    toleration = {"key": key, "operator": "Exists", "tolerationSeconds": seconds}
    return {"tolerations": [{**toleration, "effect": "NoExecute"}]}


STORIES: dict[str, tuple[Story, Expected]] = {
    "eviction": (_eviction, Expected(classes=(HARD,), cause="eviction")),
    "API preemption": (_preemption, Expected(classes=(HARD,), cause="preemption")),
    "preemption by priority": (_displaced, Expected(classes=(HARD,), cause="preemption")),
    "plain delete": (_delete, Expected(classes=(HARD,), cause="pod_deleted")),
    "shortened delete": (_shortened, Expected(classes=(HARD,), cause="pod_deleted")),
    "force delete": (_forced, Expected(classes=(HARD,), cause="pod_deleted")),
    "taint, tolerated 4 s": (
        _tainted,
        Expected(classes=(HARD, SOFT), cause="node_taint", notices=2),
    ),
    "taint, removed in time": (
        _taint_withdrawn,
        Expected(classes=(), cause="node_taint", withdrawn=1),
    ),
    "Spot node, 15 s": (_spot, Expected(classes=(HARD,), cause="spot_interruption")),
    "kubectl drain": (
        _drained,
        Expected(classes=(HARD, SOFT), cause="eviction", notices=2),
    ),
    "autoscaler": (_autoscaled, Expected(classes=(HARD, SOFT), cause="eviction", notices=2)),
    "Karpenter": (_karpenter, Expected(classes=(HARD, SOFT), cause="eviction", notices=2)),
    "Karpenter, NodeClaim deadline": (
        _karpenter_deadline,
        Expected(classes=(HARD, SOFT), cause="scale_in", notices=2),
    ),
    "graceful node shutdown": (_shutdown, Expected(classes=(SOFT,), cause="node_shutdown")),
    "uncordon": (_uncordoned, Expected(classes=(), cause="node_drain", withdrawn=1)),
    "stale DisruptionTarget": (
        _stale_disruption,
        Expected(classes=(), cause="eviction", withdrawn=1),
    ),
    "EvictionRequest": (_requested, Expected(classes=(SOFT,), cause="eviction")),
    "EvictionRequest, withdrawn": (
        _request_withdrawn,
        Expected(classes=(), cause="eviction", withdrawn=1),
    ),
}

RESPONDS: dict[str, object] = {
    "evictionResponders": [{"name": "drainfsm.io/llm", "priority": 1_000}]
}
PODS: dict[str, dict[str, object]] = {
    "taint, tolerated 4 s": _tolerating("kit/goes", 4),
    "taint, removed in time": _tolerating("kit/stays", 60),
    "EvictionRequest": RESPONDS,
    "EvictionRequest, withdrawn": RESPONDS,
}
OPTIONS = {
    "Spot node, 15 s": {"shutdown_s": "15"},
    "graceful node shutdown": {"shutdown_s": "15"},
}
NEEDS_CONTROLLERS = {"taint, tolerated 4 s"}
ONLY_WITHOUT_KUBELET = {"graceful node shutdown"}
"""A kubelet that is well overwrites what others write at Ready."""

NEEDS_SCHEDULER = {"preemption by priority"}
ALPHA = {"EvictionRequest", "EvictionRequest, withdrawn"}


def not_here(name: str, story: str) -> str:
    """Why a story cannot be played on a level that is here; empty: it can."""
    if name == "control-plane" and story in NEEDS_CONTROLLERS:
        return "there are no controllers"
    if name == "cluster" and story in ONLY_WITHOUT_KUBELET:
        return "a kubelet that is well overwrites the condition"
    if name != "cluster" and story in NEEDS_SCHEDULER:
        return "there is no scheduler"
    if name != "kit" and story in ALPHA:
        return "alpha, since 1.37"
    return ""


def _now_unix_ms() -> int:
    return round(time.time() * 1_000)


async def play(level: Level, story: str) -> Row:
    """One story, from a pod that runs to what stands in the end."""
    act, _ = STORIES[story]
    await asyncio.to_thread(level.clean)
    pod = await level.make_pod(GRACE_S, **PODS.get(story, {}))
    options = {
        "pod": pod,
        "kubeconfig": str(level.kubeconfig),
        "namespace": "default",
        **OPTIONS.get(story, {}),
    }
    context = AdapterContext(
        job_id="story", node_rank=0, node_count=1, grace_ms=GRACE_S * 1_000, options=options
    )
    adapter = kubernetes.adapter(context)
    async with watching(adapter) as sink:
        while adapter._pod is None or adapter._node is None:  # from then on nothing is missed
            await asyncio.sleep(0.02)
        told = await act(level, pod, sink)
        return _row(level, story, sink, told)


def _row(level: Level, story: str, sink: RecordingSink, told: Told) -> Row:
    standing = {
        notice.identity: notice for notice in sink.notices if notice.identity in sink.standing
    }
    hard_first = sorted(standing.values(), key=lambda notice: notice.notice_class)
    deadline = None
    if hard_first and told.deadline_unix_ms is not None:
        deadline = sink.standing[hard_first[0].identity]
    return Row(
        level=level.name,
        story=story,
        notices=len(sink.identities),
        withdrawn=len(sink.withdrawals),
        classes=tuple(notice.notice_class for notice in hard_first),
        cause=(hard_first or sink.notices)[0].cause,
        error_ms=None if deadline is None else deadline - (told.deadline_unix_ms or 0),
        skew_ms=hard_first[0].clock_skew_ms if hard_first else 0,
    )


HEAD = "| story | level | notices | withdrawn | class | cause | deadline error | stated skew |"


def line(row: Row) -> str:
    error = "" if row.error_ms is None else f"{row.error_ms / 1_000:.2f} s"
    skew = "" if row.error_ms is None else f"{row.skew_ms / 1_000:.2f} s"
    classes = " + ".join(row.classes).upper()
    return (
        f"| {row.story} | {row.level} | {row.notices} | {row.withdrawn} | {classes} | {row.cause} "
        f"| {error} | {skew} |"
    )


def main(names: list[str]) -> None:
    rows = []
    for name in names or NAMES:
        if why := missing(name):
            sys.stderr.write(f"{name}: {why}\n")
            continue
        with tempfile.TemporaryDirectory() as directory, level(name, Path(directory)) as here:
            for story in STORIES:
                if why := not_here(name, story):
                    sys.stderr.write(f"{name}: {story}: {why}\n")
                    continue
                row = asyncio.run(play(here, story))
                rows.append(row)
                sys.stderr.write(f"{line(row)}\n")
    rows.sort(key=lambda row: list(STORIES).index(row.story))
    print(HEAD + "\n" + "|---" * 8 + "|\n" + "\n".join(map(line, rows)))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
