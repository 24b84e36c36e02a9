"""EvictionRequest (alpha in Kubernetes 1.37): somebody asks for the pod to go, and may withdraw it.

The pod names its responder in ``spec.evictionResponders``. Kubernetes makes an Eviction of all the
requests for a pod and waits for what the responder says about it: heartbeats, when it expects to be
done, and that it is. Without an answer in 20 minutes it evicts the pod the classic way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from drainfsm.adapter import Departure, JobStatus
from drainfsm.core.notice import Cause, NoticeClass
from drainfsm_adapters.health import Health
from drainfsm_adapters.kubernetes_client import APPLY_PATCH, Api, RefusedError
from drainfsm_adapters.kubernetes_objects import PodView, each, instant, text
from drainfsm_adapters.kubernetes_options import SOURCE, KubernetesOptions
from drainfsm_adapters.kubernetes_showing import written
from drainfsm_adapters.kubernetes_watch import Target, Watch
from drainfsm_adapters.ledger import Observed, Reading
from drainfsm_adapters.metadata import NoAnswerError

log = logging.getLogger("drainfsm.adapters.kubernetes")

API = "/apis/lifecycle.k8s.io/v1alpha1"
KEY = "eviction-request"
PACE_S = 20.0
"""Between two heartbeats at least: Kubernetes asks for no more."""

HEARTBEAT_S = 60.0
"""Between two heartbeats at most: one that fails costs nothing."""

AGAIN_S = 0.5
"""Before the last word is tried again."""

ASKED = ("Active", "Interrupted", "Completed")
"""States of a responder whose pod is still to go. Not asked yet: Inactive; no more: Canceled."""


class EvictionView(msgspec.Struct, frozen=True, kw_only=True):
    """One Eviction, as our responder sees it."""

    name: str
    uid: str
    pod_uid: str
    state: str
    """Of our responder."""

    started_unix_ms: int | None
    """When it was our turn, by the API server's clock."""

    over: bool
    requesters: tuple[str, ...]

    @property
    def active(self) -> bool:
        return self.state == "Active" and not self.over


def eviction_of(item: dict[str, Any], responder: str) -> EvictionView:
    ours = [one for one in each(item, "status", "targetResponders") if _named(one, responder)]
    said = [one for one in each(item, "status", "responders") if _named(one, responder)]
    conditions = each(item, "status", "conditions")
    return EvictionView(
        name=text(item, "metadata", "name"),
        uid=text(item, "metadata", "uid"),
        pod_uid=text(item, "spec", "target", "pod", "uid"),
        state=text(ours[0], "state") if ours else "",
        started_unix_ms=instant(said[0], "startTime") if said else None,
        over=any(
            text(one, "type") in ("Failed", "TargetEvicted") and text(one, "status") == "True"
            for one in conditions
        ),
        requesters=tuple(
            text(one, "name")
            for one in each(item, "status", "requesters")
            if text(one, "intent") == "Eviction"
        ),
    )


def _named(item: dict[str, Any], name: str) -> bool:
    return text(item, "name") == name


def observed_of(eviction: EvictionView, *, lead_ms: int) -> Observed | None:
    """SOFT: it can be withdrawn, and states no instant. It is as if the pod went ``lead_ms`` after
    it was our turn."""
    if eviction.over or eviction.state not in ASKED:
        return None
    started = eviction.started_unix_ms
    return Observed(
        key=KEY,
        tag=eviction.uid,
        cause=Cause.EVICTION,
        notice_class=NoticeClass.SOFT,
        stated_unix_ms=None if started is None else started + lead_ms,
        assumed=True,
        detail=f"eviction {eviction.name} asked for by {', '.join(eviction.requesters)}"[:300],
    )


class Evictions:
    """Of one pod: heard, answered, and completed once the job has left for them."""

    def __init__(self, options: KubernetesOptions, *, job_id: str) -> None:
        self._options = options
        self._lead_ms = round(options.node_s * 1_000)
        self._job_id = job_id
        self._pod: PodView | None = None
        self._namespace = ""
        self._seen: dict[str, EvictionView] = {}
        self._job_status: JobStatus | None = None
        self._changed = asyncio.Event()
        self._failed = ""

    def put(self, job_status: JobStatus) -> None:
        """Where the job stands, for the next heartbeat."""
        if job_status != self._job_status:
            self._job_status = job_status
            self._changed.set()

    async def follow(
        self,
        api: Api,
        pod: asyncio.Future[PodView],
        namespace: str,
        *,
        settle: Callable[[str, str, Reading], None],
        health: Health,
    ) -> None:
        """Runs until cancelled; returns at once if the pod does not name our responder."""
        view = self._pod = await pod
        self._namespace = namespace
        self._seen.clear()
        if not view.responder:
            return

        def settle_them() -> None:
            found = [observed_of(one, lead_ms=self._lead_ms) for one in self._seen.values()]
            events = tuple(one for one in found if one is not None)[:1]
            settle("eviction", f"pod/{view.uid}", Reading(events=events))

        def seen(item: dict[str, Any]) -> None:
            eviction = eviction_of(item, view.responder)
            if eviction.pod_uid != view.uid:
                return
            if eviction.active and not self._active(eviction.name):
                self._changed.set()
            self._seen[eviction.name] = eviction
            settle_them()

        def gone(name: str, _: dict[str, Any] | None) -> None:
            if self._seen.pop(name, None) is not None:
                settle_them()

        watch = Watch(
            api,
            Target(
                path=f"{API}/namespaces/{namespace}/evictions",
                selector={"labelSelector": view.responder},
                what=f"evictions for {view.responder}",
            ),
            seen=seen,
            gone=gone,
            health=health,
            watch_s=self._options.watch_s,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(watch.follow())
            group.create_task(self._answer(api))

    def _active(self, name: str) -> bool:
        eviction = self._seen.get(name)
        return eviction is not None and eviction.active

    async def _answer(self, api: Api) -> None:
        """A heartbeat as soon as it is our turn, with changes of the drain, and now and then."""
        while True:
            await self._changed.wait()
            while any(one.active for one in self._seen.values()):
                self._changed.clear()
                await self._heartbeat(api)
                await asyncio.sleep(PACE_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S - PACE_S):
                        await self._changed.wait()
            self._changed.clear()

    async def _heartbeat(self, api: Api) -> None:
        """What could not be reported is logged, once for every reason."""
        for eviction in [one for one in self._seen.values() if one.active]:
            try:
                await self._say(api, eviction, done=False)
            except NoAnswerError as error:
                if str(error) != self._failed:
                    self._failed = str(error)
                    log.warning("kubernetes: eviction %s is not answered: %s", eviction.name, error)

    async def complete(self, api: Api, departure: Departure) -> str:
        """The job has left: what is left of the pod may go. Raises: NoAnswerError."""
        pod = self._pod
        done = []
        for eviction in [one for one in self._seen.values() if one.active]:
            identity = f"{SOURCE}/pod/{pod.uid if pod else ''}/{KEY}/{eviction.uid}"
            if any(left.partition("~")[0] == identity for left in departure.left_for):
                await self._end(api, eviction, timeout_s=departure.timeout_ms / 1_000)
                done.append(eviction.name)
        return f"eviction {', '.join(done)} is answered: the job has left" if done else ""

    async def _end(self, api: Api, eviction: EvictionView, *, timeout_s: float) -> None:
        """As often as there is time for."""
        loop = asyncio.get_running_loop()
        gives_up = loop.time() + timeout_s
        while True:
            try:
                return await self._say(api, eviction, done=True)
            except RefusedError:
                raise
            except NoAnswerError:
                if loop.time() + AGAIN_S >= gives_up:
                    raise
                await asyncio.sleep(AGAIN_S)

    async def _say(self, api: Api, eviction: EvictionView, *, done: bool) -> None:
        """Write our entry beside those of others: a server-side apply."""
        offset_ms = api.clock.offset_ms
        started = eviction.started_unix_ms or 0
        now = max(api.now_unix_ms() + offset_ms, started)
        assert self._pod is not None
        entry = {
            "name": self._pod.responder,
            "heartbeatTime": written(now),
            "message": self._message(done=done),
        }
        expected = self._expected_unix_ms(eviction, offset_ms)
        if done:
            entry["completionTime"] = written(now)
        elif expected > now:
            entry["expectedCompletionTime"] = written(expected)
        await api.request(
            "PATCH",
            f"{API}/namespaces/{self._namespace}/evictions/{eviction.name}/status",
            query={"fieldManager": "drainfsm", "force": "true"},
            body={
                "apiVersion": API.removeprefix("/apis/"),
                "kind": "Eviction",
                "metadata": {"name": eviction.name, "uid": eviction.uid},
                "status": {"responders": [entry]},
            },
            content_type=APPLY_PATCH,
        )

    def _expected_unix_ms(self, eviction: EvictionView, offset_ms: int) -> int:
        """By the API server's clock: the drain's deadline, where it is known here."""
        assumed = (eviction.started_unix_ms or 0) + self._lead_ms
        job_status = self._job_status
        if job_status is None or job_status.deadline_unix_ms is None:
            return assumed
        return job_status.deadline_unix_ms + offset_ms

    def _message(self, *, done: bool) -> str:
        if done:
            return f"job {self._job_id} has left"
        job_status = self._job_status
        if job_status is None:
            return f"job {self._job_id} has heard it"
        step = job_status.committed_step
        at = "nothing is committed" if step is None else f"step {step} is committed"
        return f"job {self._job_id}: {job_status.phase}; {at}"
