"""How pods end: graces and how they are shortened, evictions and budgets, taints, preemption.

What a kubelet does is played too: it kills by the first grace that it saw, whatever comes later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from drainfsm_kit.kube.objects import Conflict, Json, Key, Objects, read, selected, written


class BudgetError(Exception):
    """A PodDisruptionBudget is in the way."""


class Pods:
    def __init__(self, objects: Objects, *, kubelet: bool = True) -> None:
        self._objects = objects
        self._kubelet = kubelet
        self._timers: list[threading.Timer] = []
        self._taints: dict[tuple[str, str], threading.Timer] = {}

    def close(self) -> None:
        for timer in (*self._timers, *self._taints.values()):
            timer.cancel()

    # --- deletion -------------------------------------------------------------------------------

    def delete(self, key: Key, options: Json | None = None) -> Json:
        """Raises: KeyError: no such pod. Conflict: a precondition does not hold."""
        options = options or {}
        with self._objects.changed:
            pod = self._objects.get(key)
            if pod is None:
                raise KeyError(key.name)
            uid = (options.get("preconditions") or {}).get("uid")
            if uid not in (None, pod["metadata"]["uid"]):
                raise Conflict(
                    f"Precondition failed: UID in precondition: {uid}, "
                    f"UID in object meta: {pod['metadata']['uid']}"
                )
            grace_s = options.get("gracePeriodSeconds")
            if grace_s is None:
                grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
            if grace_s < 0:
                grace_s = 1
            if not pod["spec"].get("nodeName") or pod["status"].get("phase") in (
                "Succeeded",
                "Failed",
            ):
                grace_s = 0
            return self._delete(key, pod, grace_s)

    def _delete(self, key: Key, pod: Json, grace_s: int) -> Json:
        now = self._objects.now_unix_s()
        before_s = pod["metadata"].get("deletionGracePeriodSeconds")
        if before_s is not None and grace_s >= before_s:
            return pod
        first = before_s is None
        at = now + grace_s
        if not first:
            at = read(pod["metadata"]["deletionTimestamp"]) - before_s + grace_s
        if grace_s and at < now:
            at, grace_s = now, 1

        def mark(item: Json) -> None:
            item["metadata"].update(
                deletionTimestamp=written(at if grace_s else now),
                deletionGracePeriodSeconds=grace_s,
                generation=item["metadata"]["generation"] + (1 if first else 0),
            )

        marked = self._objects.update(key, mark)
        if grace_s == 0:
            return self._objects.remove(key)
        if first and self._kubelet:
            self._later(grace_s, lambda: self.ended(key, pod["metadata"]["uid"]))
        return marked

    def ended(self, key: Key, uid: str) -> None:
        """The kubelet has killed the containers: it deletes the pod for good."""
        with self._objects.changed:
            pod = self._objects.get(key)
            if pod is None or pod["metadata"]["uid"] != uid:
                return
            self.delete(key, {"gracePeriodSeconds": 0})

    def _later(self, after_s: float, act: Callable[[], None]) -> threading.Timer:
        timer = threading.Timer(after_s, act)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)
        return timer

    # --- disruptions ----------------------------------------------------------------------------

    def disrupt(self, key: Key, reason: str, *, status: str = "True") -> None:
        """The condition alone. ``status`` False: the controller takes it back."""

        def mark(pod: Json) -> None:
            conditions = pod["status"].setdefault("conditions", [])
            conditions[:] = [one for one in conditions if one["type"] != "DisruptionTarget"]
            conditions.append(
                {
                    "type": "DisruptionTarget",
                    "status": status,
                    "reason": reason,
                    "message": "",
                    "lastTransitionTime": written(self._objects.now_unix_s()),
                }
            )

        self._objects.update(key, mark)

    def preempt(self, key: Key) -> None:
        self.disrupt(key, "PreemptionByScheduler")
        self.delete(key)

    def evict(self, key: Key, eviction: Json, *, dry_run: bool = False) -> None:
        """Raises: KeyError, Conflict, BudgetError."""
        with self._objects.changed:
            pod = self._objects.get(key)
            if pod is None:
                raise KeyError(key.name)
            options = eviction.get("deleteOptions") or {}
            uid = (options.get("preconditions") or {}).get("uid")
            if uid not in (None, pod["metadata"]["uid"]):
                raise Conflict(f"the uid is {pod['metadata']['uid']}")
            self._check_budgets(pod)
            if dry_run:
                return
            if "deletionTimestamp" not in pod["metadata"]:
                self.disrupt(key, "EvictionByEvictionAPI")
            self.delete(key, options)

    def _check_budgets(self, pod: Json) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            return
        namespace = pod["metadata"]["namespace"]
        for budget in self._objects.every("poddisruptionbudgets", namespace):
            labels = budget["spec"]["selector"]["matchLabels"]
            if (
                selected(pod, {}, labels)
                and budget.get("status", {}).get("disruptionsAllowed") == 0
            ):
                raise BudgetError(budget["metadata"]["name"])

    # --- taints ---------------------------------------------------------------------------------

    def on_node(self, node: Json) -> None:
        """What the taint manager makes of a node's taints."""
        name = node["metadata"]["name"]
        taints = [t for t in node["spec"].get("taints") or [] if t["effect"] == "NoExecute"]
        for pod in self._objects.every("pods"):
            if pod["spec"].get("nodeName") == name:
                self._tolerate(pod, taints)

    def _tolerate(self, pod: Json, taints: list[Json]) -> None:
        metadata = pod["metadata"]
        key = Key("pods", metadata["namespace"], metadata["name"])
        waits: list[float] = []
        for taint in taints:
            found = [t for t in pod["spec"].get("tolerations") or [] if _matches(t, taint)]
            if not found:
                waits.append(0.0)
            elif found[0].get("tolerationSeconds") is not None:
                waits.append(float(found[0]["tolerationSeconds"]))
        mark = (key.namespace, key.name)
        if not waits:
            timer = self._taints.pop(mark, None)
            if timer is not None:
                timer.cancel()
        elif mark not in self._taints:
            self._taints[mark] = self._later(min(waits), lambda: self._taint_out(key))

    def _taint_out(self, key: Key) -> None:
        self.disrupt(key, "DeletionByTaintManager")
        self.delete(key)


def _matches(toleration: dict[str, Any], taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(
        toleration.get("key") == taint["key"]
        and toleration.get("value", "") == taint.get("value", "")
    )
