"""What pods and nodes say about their end: class, cause and deadline. Pure.

- A deletion is HARD: its timestamp may only move earlier. DisruptionTarget is written milliseconds
  before it, and taken back after two minutes where the deletion never came: SOFT until then.
- What nodes say is SOFT, except the end of a Spot machine and of a Karpenter node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from drainfsm.core.notice import Cause, NoticeClass
from drainfsm_adapters.kubernetes_objects import (
    KARPENTER_TAINTS,
    Condition,
    NodeView,
    PodView,
    Taint,
    instant_of,
    tolerates,
)
from drainfsm_adapters.kubernetes_options import SOURCE, KubernetesOptions
from drainfsm_adapters.ledger import Observed, Reading
from drainfsm_adapters.times import from_http_date

CLAIM_DEADLINE = "karpenter.sh/nodeclaim-termination-timestamp"

KUBELET_GRACE_MS = 1_900
"""From SIGTERM to the last sign of life, where the grace is 0 or 1: the kubelet's floor is 2 s."""

DISRUPTION_MS = 120_000
"""DisruptionTarget is taken back after this long, if the deletion never came."""

STALE_MS = 600_000
"""A node that has outlived its stated end by this much is not about to end."""

FAR_MS = 7 * 24 * 3_600_000
"""No platform announces an end in free text this long before."""

DISRUPTIONS = {
    "PreemptionByScheduler": Cause.PREEMPTION,
    "DeletionByTaintManager": Cause.NODE_TAINT,
    "DeletionByDeviceTaintManager": Cause.DEVICE_TAINT,
    "EvictionByEvictionAPI": Cause.EVICTION,
    "DeletionByPodGC": Cause.NODE_LOST,
    "TerminationByKubelet": Cause.NODE_SHUTDOWN,
}
"""Cause by reason of DisruptionTarget; the reasons are not stable, so others are ``eviction``."""


class Rule(msgspec.Struct, frozen=True):
    """What a taint or condition announces, where it states no instant itself."""

    cause: Cause
    lead: str
    """``node``, ``candidate``: the option; ``window``: it is about to happen."""

    notice_class: NoticeClass = NoticeClass.SOFT


TAINTS = {
    "ToBeDeletedByClusterAutoscaler": Rule(Cause.SCALE_IN, "node"),
    "DeletionCandidateOfClusterAutoscaler": Rule(Cause.SCALE_IN, "candidate"),
    **{key: Rule(Cause.SCALE_IN, "node") for key in KARPENTER_TAINTS},
    "aws-node-termination-handler/spot-itn": Rule(
        Cause.SPOT_INTERRUPTION, "window", NoticeClass.HARD
    ),
    "aws-node-termination-handler/scheduled-maintenance": Rule(Cause.HOST_MAINTENANCE, "node"),
    "aws-node-termination-handler/asg-lifecycle-termination": Rule(Cause.SCALE_IN, "node"),
    "aws-node-termination-handler/rebalance-recommendation": Rule(
        Cause.REBALANCE_RECOMMENDATION, "node"
    ),
    "cloud.google.com/impending-node-termination": Rule(
        Cause.SPOT_INTERRUPTION, "window", NoticeClass.HARD
    ),
    "node.kubernetes.io/out-of-service": Rule(Cause.NODE_LOST, "window"),
    "remediator.kubernetes.azure.com/unschedulable": Rule(Cause.HOST_MAINTENANCE, "node"),
}

CONDITIONS = {
    "PreemptScheduled": Rule(Cause.SPOT_INTERRUPTION, "window", NoticeClass.HARD),
    "PreemptionScheduled": Rule(Cause.SPOT_INTERRUPTION, "window", NoticeClass.HARD),
    "RebootScheduled": Rule(Cause.HOST_MAINTENANCE, "node"),
    "RedeployScheduled": Rule(Cause.HOST_MAINTENANCE, "node"),
    "FreezeScheduled": Rule(Cause.HOST_MAINTENANCE, "node"),
    "TerminateScheduled": Rule(Cause.SCALE_IN, "node"),
    "DrainInProgress": Rule(Cause.NODE_DRAIN, "node"),
    "MaintenanceInProgress": Rule(Cause.HOST_MAINTENANCE, "node"),
    "GracefulNodeShutdownInProgress": Rule(Cause.NODE_SHUTDOWN, "window"),
}
"""Of AKS's node-problem-detector, and the well-known ones of Kubernetes 1.37."""

_INSTANT = re.compile(r"[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
_EVENT = re.compile(r"EventId: ?([0-9A-Za-z-]{1,64})")


def deletion_of(pod: PodView) -> Observed | None:
    """The pod's deletion, or what may become one."""
    disruption = pod.condition("DisruptionTarget")
    if pod.deleting:
        stated = pod.deletion_unix_ms
        if stated is not None and (pod.deletion_grace_s or 0) <= 1:
            stated += KUBELET_GRACE_MS
        return Observed(
            key="deletion",
            cause=_cause(disruption, Cause.POD_DELETED),
            notice_class=NoticeClass.HARD,
            stated_unix_ms=stated,
            detail=_with_disruption(disruption, f"grace {pod.deletion_grace_s} s"),
        )
    if disruption is None or pod.phase in ("Succeeded", "Failed"):
        return None
    changed = disruption.changed_unix_ms
    return Observed(
        key="deletion",
        cause=_cause(disruption, Cause.EVICTION),
        notice_class=NoticeClass.SOFT,
        stated_unix_ms=None if changed is None else changed + DISRUPTION_MS + pod.grace_s * 1_000,
        detail=_with_disruption(disruption, "not deleted yet"),
    )


def gone_of(pod: PodView, *, now_unix_ms: int) -> Observed:
    """It is gone from the API: what runs is about to be killed."""
    disruption = pod.condition("DisruptionTarget")
    return Observed(
        key="deletion",
        cause=_cause(disruption, Cause.POD_DELETED),
        notice_class=NoticeClass.HARD,
        derived_unix_ms=now_unix_ms + KUBELET_GRACE_MS,
        detail=_with_disruption(disruption, "the pod is gone from the API"),
    )


def pod_reading(pod: PodView) -> Reading:
    events = [deletion_of(pod), _active_deadline(pod)]
    return Reading(events=tuple(event for event in events if event is not None))


def _active_deadline(pod: PodView) -> Observed | None:
    """SOFT, although it stands fast: known from the start, it must not stop the job at once."""
    if pod.active_deadline_s is None or pod.started_unix_ms is None or pod.deleting:
        return None
    return Observed(
        key="active-deadline",
        cause=Cause.TIME_LIMIT,
        notice_class=NoticeClass.SOFT,
        stated_unix_ms=pod.started_unix_ms + pod.active_deadline_s * 1_000,
        detail=f"activeDeadlineSeconds {pod.active_deadline_s}",
    )


def _cause(disruption: Condition | None, default: Cause) -> Cause:
    return default if disruption is None else DISRUPTIONS.get(disruption.reason, Cause.EVICTION)


def _with_disruption(disruption: Condition | None, detail: str) -> str:
    if disruption is None:
        return detail
    return f"{detail}; {disruption.reason}: {disruption.message}"[:300]


class NodeReader:
    """What one node says, seen from one pod on it."""

    def __init__(self, options: KubernetesOptions) -> None:
        extra = filter(None, (key.strip() for key in options.taints.split(",")))
        self._options = options
        self._taints = {**{key: Rule(Cause.NODE_DRAIN, "node") for key in extra}, **TAINTS}

    def reading(
        self, node: NodeView, pod: PodView | None, *, claim_unix_ms: int | None, now_unix_ms: int
    ) -> Reading:
        """``claim_unix_ms``: the end of its NodeClaim; None: none is stated."""
        found: dict[str, Observed] = {}
        for event in self._events(node, pod, claim_unix_ms, now_unix_ms):
            found.setdefault(event.key, event)
        return Reading(events=tuple(found.values()))

    def window_ms(self) -> int | None:
        """What a shutdown leaves, if the configuration says so."""
        return round(self._options.shutdown_s * 1_000) or None

    def _events(
        self, node: NodeView, pod: PodView | None, claim_unix_ms: int | None, now: int
    ) -> Iterator[Observed]:
        if self._is_news(node, pod):
            yield self._observed(
                "cordon", Rule(Cause.NODE_DRAIN, "node"), now, tag=node.cordoned_at
            )
        for taint in node.taints:
            if taint.key in self._taints:
                rule = self._taints[taint.key]
                yield self._observed(f"taint/{taint.key}", rule, now, tag=taint.value)
            elif taint.effect == "NoExecute" and pod is not None:
                yield from _tolerated(taint, pod, now)
        if claim_unix_ms is not None and node.disrupted:
            yield Observed(
                key="nodeclaim",
                cause=Cause.SCALE_IN,
                notice_class=NoticeClass.HARD,
                stated_unix_ms=claim_unix_ms,
                detail="the NodeClaim states when the node ends",
            )
        if node.shuts_down:
            yield self._observed("shutdown", Rule(Cause.NODE_SHUTDOWN, "window"), now)
        for condition in node.conditions:
            yield from self._of_condition(condition, now)

    def _is_news(self, node: NodeView, pod: PodView | None) -> bool:
        """Somebody else's cordon, later than the pod: otherwise the pod was put there knowingly."""
        if not node.unschedulable or node.own_cordon:
            return False
        started = None if pod is None else pod.started_unix_ms
        cordoned = instant_of(node.cordoned_at)
        return started is None or cordoned is None or cordoned >= started

    def _of_condition(self, condition: Condition, now: int) -> Iterator[Observed]:
        rule = CONDITIONS.get(condition.type)
        if rule is None or condition.status != "True":
            return
        stated = _stated_in(condition.message)
        if stated is not None and now - stated > STALE_MS:
            return
        event = _EVENT.search(condition.message)
        observed = self._observed(
            f"condition/{condition.type}", rule, now, tag=event[1] if event else ""
        )
        if stated is not None and stated - now < FAR_MS:
            observed = msgspec.structs.replace(
                observed, stated_unix_ms=stated, derived_unix_ms=None, assumed=False
            )
        yield msgspec.structs.replace(
            observed, detail=f"{condition.reason}: {condition.message}"[:300]
        )

    def _observed(self, key: str, rule: Rule, now: int, *, tag: str = "") -> Observed:
        options = self._options
        lead_ms = {
            "node": round(options.node_s * 1_000),
            "candidate": round(options.candidate_s * 1_000),
            "window": self.window_ms(),
        }[rule.lead]
        return Observed(
            key=key,
            tag=re.sub(r"[^0-9A-Za-z._:-]", "_", tag)[:64],
            cause=rule.cause,
            notice_class=rule.notice_class,
            derived_unix_ms=None if lead_ms is None else now + lead_ms,
            assumed=True,
            detail=key,
        )


def remembered(reading: Reading, scope: str, left_for: Mapping[str, int | None]) -> Reading:
    """With the instants that an attempt before this one has left for, of what states none itself:
    seen anew, the end would be as far away as it was then."""

    def of(event: Observed) -> Observed:
        identity = "/".join(filter(None, (SOURCE, scope, event.key, event.tag)))
        before = left_for.get(identity)
        states_none = event.stated_unix_ms is None and not event.assumed
        if before is None or event.derived_unix_ms is None or not states_none:
            return event
        earliest = min(before, event.derived_unix_ms)
        return msgspec.structs.replace(event, derived_unix_ms=earliest)

    return msgspec.structs.replace(reading, events=tuple(of(event) for event in reading.events))


def _tolerated(taint: Taint, pod: PodView, now: int) -> Iterator[Observed]:
    """Deleted when the toleration is over. Not tolerated at all: the deletion is there already."""
    matching = next((one for one in pod.tolerations if tolerates(one, taint)), None)
    if matching is None or matching.seconds is None:
        return
    lead_ms = (max(0, matching.seconds) + pod.grace_s) * 1_000
    added = taint.added_unix_ms
    yield Observed(
        key=f"taint/{taint.key}",
        cause=Cause.NODE_TAINT,
        notice_class=NoticeClass.SOFT,
        stated_unix_ms=None if added is None else added + lead_ms,
        derived_unix_ms=now + lead_ms,
        detail=f"tolerated for {matching.seconds} s",
    )


def _stated_in(message: str) -> int | None:
    found = _INSTANT.search(message)
    if found is None:
        return None
    try:
        return from_http_date(found[0])
    except (ValueError, OverflowError):
        return None


def claim_deadline(annotations: object, *, now_unix_ms: int) -> int | None:
    """Of a NodeClaim; None: none is stated, or it has long passed."""
    text = annotations.get(CLAIM_DEADLINE) if isinstance(annotations, dict) else None
    stated = instant_of(text) if isinstance(text, str) else None
    return None if stated is None or now_unix_ms - stated > STALE_MS else stated
