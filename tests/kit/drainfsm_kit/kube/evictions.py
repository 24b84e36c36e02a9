"""EvictionRequest as Kubernetes 1.37 has it (alpha): what controller and API server make of what
responders say. ``Evictions`` are made here as the controller would make them of requests.
"""

from __future__ import annotations

from drainfsm_kit.kube.objects import Json, Key, Objects, read, written
from drainfsm_kit.kube.pods import Pods

SKEW_S = 30.0
LAST = {"name": "imperative-eviction.k8s.io/evictor", "priority": 100}
ONCE = ("startTime", "completionTime")


class Invalid(Exception):  # noqa: N818 - the API's own word
    """A responder has said what it must not."""


class Evictions:
    def __init__(self, objects: Objects, pods: Pods) -> None:
        self._objects = objects
        self._pods = pods

    def request(self, pod: str, *, requester: str = "example.com/maintenance") -> str:
        """For the pod; its first responder is asked. The Eviction's name."""
        with self._objects.changed:
            target = self._objects.get(Key("pods", "default", pod))
            if target is None:
                raise KeyError(pod)
            asked = sorted(
                [*target["spec"].get("evictionResponders", []), LAST],
                key=lambda one: -one["priority"],
            )
            names = [one["name"] for one in asked]
            count = len(self._objects.every("evictions"))
            key = Key("evictions", "default", f"pod-{count + 1}-{pod}")
            uid = target["metadata"]["uid"]
            states = ["Active", *("Inactive" for _ in names[1:])]
            status = {
                "requesters": [{"name": requester, "intent": "Eviction"}],
                "targetResponders": [
                    {**one, "state": state} for one, state in zip(asked, states, strict=True)
                ],
                "responders": [{"name": name} for name in names],
            }
            status["responders"][0]["startTime"] = written(self._objects.now_unix_s())
            item = {
                "metadata": {"labels": dict.fromkeys(names, "responder")},
                "spec": {"target": {"pod": {"name": pod, "uid": uid}}},
                "status": status,
            }
            self._objects.create(key, item)
            return key.name

    def withdraw(self, name: str) -> None:
        """Nobody asks for it any more."""

        def change(item: Json) -> None:
            for one in item["status"]["requesters"]:
                one["intent"] = "Withdrawn"
            for one in item["status"]["targetResponders"]:
                if one["state"] == "Active":
                    one["state"] = "Canceled"
            failed = {"type": "Failed", "status": "True", "reason": "CanceledDueToNoRequesters"}
            item["status"]["conditions"] = [failed]

        self._objects.update(Key("evictions", "default", name), change)

    def said(self, name: str) -> Json:
        """By the first responder."""
        found = self._objects.get(Key("evictions", "default", name))
        if found is None:
            raise KeyError(name)
        said: Json = found["status"]["responders"][0]
        return said

    def apply(self, key: Key, patch: Json) -> Json:
        """A server-side apply to the status. Raises: KeyError, Invalid."""
        with self._objects.changed:
            changed = self._objects.update(key, lambda item: self._apply(item, patch))
            pod = changed["spec"]["target"]["pod"]["name"]
            if changed["status"]["targetResponders"][-1]["state"] == "Active":
                self._pods.evict(Key("pods", key.namespace, pod), {})
            return changed

    def _apply(self, item: Json, patch: Json) -> None:
        if patch["metadata"].get("uid") not in (None, item["metadata"]["uid"]):
            raise Invalid("the uid is another")
        states = item["status"]["targetResponders"]
        for entry in patch["status"]["responders"]:
            at = [one["name"] for one in states].index(entry["name"])
            if states[at]["state"] != "Active":
                raise Invalid("only the active responder may say anything")
            before = item["status"]["responders"][at]
            kept = {name: before[name] for name in ONCE if name in before}
            item["status"]["responders"][at] = after = {**kept, **entry}
            self._check(before, after)
            if "completionTime" in after:
                states[at]["state"] = "Completed"
                states[at + 1]["state"] = "Active"

    def _check(self, before: Json, after: Json) -> None:
        now, began = self._objects.now_unix_s(), read(after["startTime"])
        for name in ONCE:
            if before.get(name, after.get(name)) != after.get(name):
                raise Invalid(f"{name} is immutable")
        if "heartbeatTime" in before and "heartbeatTime" not in after:
            raise Invalid("heartbeatTime is required once set")
        for name in ("heartbeatTime", "completionTime"):
            if name in after and after[name] != before.get(name):
                at = read(after[name])
                if abs(at - now) >= SKEW_S or at < began:
                    raise Invalid(f"{name} must be set to the present time")
        expected = after.get("expectedCompletionTime")
        if expected is not None and read(expected) < max(began, now - SKEW_S):
            raise Invalid("expectedCompletionTime cannot be set to the past time")
