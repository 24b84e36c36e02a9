"""What the adapter reads of pods and nodes. Fields may be missing or of any type, and are
then ignored: other people's controllers write there, too."""

from __future__ import annotations

from typing import Any

import msgspec

from drainfsm_adapters.times import from_rfc3339

KARPENTER_TAINTS = ("karpenter.sh/disrupted", "karpenter.sh/disruption")
SHUTTING_DOWN = "node is shutting down"
"""The kubelet's message at Ready, the only sign of its graceful shutdown."""

OWN_CORDON = "drainfsm.io/cordoned-by"
"""Annotation of a node that was cordoned by an adapter like this."""

RESPONDERS = "drainfsm.io/"
"""Whatever follows names the job: its pods hear of each other's evictions, and of no others."""

WHOLE_S_MAX = 10 * 366 * 24 * 3_600
"""Durations beyond ten years are nonsense."""


def dig(item: object, *path: str) -> Any:
    """The value there; None: there is none."""
    for key in path:
        if not isinstance(item, dict):
            return None
        item = item.get(key)
    return item


def text(item: object, *path: str) -> str:
    found = dig(item, *path)
    return found if isinstance(found, str) else ""


def seconds(item: object, *path: str) -> int | None:
    found = dig(item, *path)
    if isinstance(found, bool) or not isinstance(found, int):
        return None
    return found if abs(found) <= WHOLE_S_MAX else None


def instant(item: object, *path: str) -> int | None:
    """UTC milliseconds by the writer's clock."""
    return instant_of(text(item, *path))


def instant_of(written: str) -> int | None:
    try:
        return from_rfc3339(written)
    except (ValueError, OverflowError):
        return None


def each(item: object, *path: str) -> list[dict[str, Any]]:
    found = dig(item, *path)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str
    message: str
    changed_unix_ms: int | None


class Toleration(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    operator: str
    value: str
    effect: str
    seconds: int | None
    """None: for ever."""


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    value: str
    effect: str
    added_unix_ms: int | None


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: str
    node: str
    grace_s: int
    deleting: bool
    deletion_unix_ms: int | None
    """``deletionTimestamp``: when the grace is over, by the API server's clock."""

    deletion_grace_s: int | None
    started_unix_ms: int | None
    active_deadline_s: int | None
    phase: str
    conditions: tuple[Condition, ...]
    tolerations: tuple[Toleration, ...]
    responder: str
    """Whom the pod names to answer an EvictionRequest, if that is us; empty: nobody of ours."""

    def condition(self, kind: str) -> Condition | None:
        return _true(self.conditions, kind)


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    unschedulable: bool
    cordoned_at: str
    """When that was written, by the server's record; empty: not known."""

    own_cordon: bool
    """It is cordoned by an adapter like this, and not by whoever came after it."""

    taints: tuple[Taint, ...]
    conditions: tuple[Condition, ...]
    claim: str
    """Karpenter's NodeClaim behind it."""

    @property
    def disrupted(self) -> bool:
        return any(taint.key in KARPENTER_TAINTS for taint in self.taints)

    @property
    def shuts_down(self) -> bool:
        """The kubelet's graceful shutdown is on."""
        return any(
            one.type == "Ready" and one.status != "True" and SHUTTING_DOWN in one.message
            for one in self.conditions
        )


GRACE_S = 30
"""What the API server fills in."""


def pod_of(item: dict[str, Any]) -> PodView:
    grace_s = seconds(item, "spec", "terminationGracePeriodSeconds")
    return PodView(
        name=text(item, "metadata", "name"),
        uid=text(item, "metadata", "uid"),
        node=text(item, "spec", "nodeName"),
        grace_s=GRACE_S if grace_s is None else max(0, grace_s),
        deleting=dig(item, "metadata", "deletionTimestamp") is not None,
        deletion_unix_ms=instant(item, "metadata", "deletionTimestamp"),
        deletion_grace_s=seconds(item, "metadata", "deletionGracePeriodSeconds"),
        started_unix_ms=instant(item, "status", "startTime"),
        active_deadline_s=seconds(item, "spec", "activeDeadlineSeconds"),
        phase=text(item, "status", "phase"),
        conditions=_conditions(item),
        tolerations=tuple(
            Toleration(
                key=text(one, "key"),
                operator=text(one, "operator"),
                value=text(one, "value"),
                effect=text(one, "effect"),
                seconds=seconds(one, "tolerationSeconds"),
            )
            for one in each(item, "spec", "tolerations")
        ),
        responder=next(
            (
                text(one, "name")
                for one in each(item, "spec", "evictionResponders")
                if text(one, "name").startswith(RESPONDERS)
            ),
            "",
        ),
    )


def node_of(item: dict[str, Any]) -> NodeView:
    owners = each(item, "metadata", "ownerReferences")
    claims = [text(owner, "name") for owner in owners if text(owner, "kind") == "NodeClaim"]
    return NodeView(
        name=text(item, "metadata", "name"),
        version=text(item, "metadata", "resourceVersion"),
        unschedulable=dig(item, "spec", "unschedulable") is True,
        cordoned_at=_cordoned_at(item),
        own_cordon=_own_cordon(item),
        taints=tuple(
            Taint(
                key=text(one, "key"),
                value=text(one, "value"),
                effect=text(one, "effect"),
                added_unix_ms=instant(one, "timeAdded"),
            )
            for one in each(item, "spec", "taints")
        ),
        conditions=_conditions(item),
        claim=claims[0] if claims else "",
    )


def _conditions(item: dict[str, Any]) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=text(one, "type"),
            status=text(one, "status"),
            reason=text(one, "reason"),
            message=text(one, "message"),
            changed_unix_ms=instant(one, "lastTransitionTime"),
        )
        for one in each(item, "status", "conditions")
    )


def _true(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    return next((one for one in conditions if one.type == kind and one.status == "True"), None)


def _cordoned_at(item: dict[str, Any]) -> str:
    """When the field was last written: tells one cordon from the next on the same node."""
    return next((text(entry, "time") for entry in _cordons(item)), "")


def _own_cordon(item: dict[str, Any]) -> bool:
    """An uncordon leaves our annotation: it counts only for whoever wrote both."""
    annotations = dig(item, "metadata", "annotations")
    if not isinstance(annotations, dict) or OWN_CORDON not in annotations:
        return False
    written = [dig(one, "fieldsV1", "f:metadata", "f:annotations") for one in _cordons(item)]
    return not written or any(isinstance(one, dict) and f"f:{OWN_CORDON}" in one for one in written)


def _cordons(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Whose last word the field is, of those who write to the node."""
    entries = each(item, "metadata", "managedFields")
    return [one for one in entries if dig(one, "fieldsV1", "f:spec", "f:unschedulable") is not None]


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """As the API defines it."""
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value
