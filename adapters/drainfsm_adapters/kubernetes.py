"""Kubernetes: the end of this pod and of its node, the cordon, and what schedulers may read.

Every agent watches its own pod and its own node, each by one filtered watch, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from drainfsm.adapter import AdapterContext, Departure, JobStatus, NoticeSink
from drainfsm.core.notice import Cause, Notice
from drainfsm_adapters.health import Health
from drainfsm_adapters.kubernetes_client import (
    MERGE_PATCH,
    Api,
    NoConnectionError,
    RefusedError,
    connection_of,
)
from drainfsm_adapters.kubernetes_evictions import Evictions
from drainfsm_adapters.kubernetes_evidence import (
    KUBELET_GRACE_MS,
    NodeReader,
    claim_deadline,
    gone_of,
    pod_reading,
    remembered,
)
from drainfsm_adapters.kubernetes_objects import (
    OWN_CORDON,
    NodeView,
    PodView,
    dig,
    node_of,
    pod_of,
)
from drainfsm_adapters.kubernetes_options import SOURCE, kubernetes_options, place_of
from drainfsm_adapters.kubernetes_preemptor import Preemptor
from drainfsm_adapters.kubernetes_showing import Board
from drainfsm_adapters.kubernetes_watch import Target, Watch
from drainfsm_adapters.ledger import Ledger, Reading
from drainfsm_adapters.metadata import NoAnswerError

CONFIRM_S = 1.1
"""Until a change that awaits confirmation is settled again."""

CLAIM_S = 10.0
"""Between two looks at the NodeClaim of a node that Karpenter disrupts."""

CONFLICTS_MAX = 3
"""Tries of the cordon, each after somebody else wrote to the node first."""


def adapter(context: AdapterContext) -> KubernetesAdapter:
    """The factory behind ``--source kubernetes`` and ``--cordon kubernetes``.

    Raises:
        ConfigError: an option, a name or the kubeconfig is wrong.
    """
    return KubernetesAdapter(context)


class KubernetesAdapter:
    """One agent's view of its pod and node."""

    def __init__(self, context: AdapterContext) -> None:
        self._context = context
        self._options = kubernetes_options(context.options)
        self._now_unix_ms = context.now_unix_ms
        self._reader = NodeReader(self._options)
        self._api: Api | None = None
        self._no_api = ""
        namespace = "default"
        try:
            connection = connection_of(self._options.kubeconfig)
        except NoConnectionError as error:
            self._no_api = str(error)
        else:
            namespace = connection.namespace
            self._api = Api(
                connection, timeout_s=self._options.timeout_s, now_unix_ms=context.now_unix_ms
            )
        self._place = place_of(self._options, os.environ, default_namespace=namespace)
        self._pod: PodView | None = None
        self._node: NodeView | None = None
        self._claim_unix_ms: int | None = None
        self._ledger: _Ledgers | None = None
        self._node_name: asyncio.Future[str] | None = None
        self._own_pod: asyncio.Future[PodView] | None = None
        self._preemptor = Preemptor()
        self._board = Board()
        self._evictions = Evictions(self._options, job_id=context.job_id)

    # --- notices --------------------------------------------------------------------------------

    async def watch(self, sink: NoticeSink) -> None:
        """Hear notices until cancelled."""
        if self._api is None:
            sink.unknown(source=SOURCE, since_unix_ms=self._now_unix_ms(), detail=self._no_api)
            await asyncio.Event().wait()
            return
        self._ledger = _Ledgers(self._api, sink)
        loop = asyncio.get_running_loop()
        self._node_name, self._own_pod = loop.create_future(), loop.create_future()
        try:
            async with asyncio.TaskGroup() as group:
                namespace = self._place.namespace
                group.create_task(self._watch_pod(self._api, sink))
                group.create_task(self._preemptor.follow(self._api, namespace, sink))
                group.create_task(
                    self._evictions.follow(
                        self._api,
                        self._own_pod,
                        namespace,
                        settle=self._settle,
                        health=self._health("evictions", sink),
                    )
                )
                if self._options.annotate:
                    group.create_task(self._board.follow(self._api, self._own_pod, namespace))
                if self._options.nodes:
                    group.create_task(self._watch_node(self._api, sink))
                    group.create_task(self._follow_claim(self._api, sink))
        finally:
            self._ledger = None
            await self._api.close()

    async def _watch_pod(self, api: Api, sink: NoticeSink) -> None:
        place = self._place
        target = Target(
            path=f"/api/v1/namespaces/{place.namespace}/pods",
            name=place.pod,
            what=f"pod {place.namespace}/{place.pod}",
        )
        watch = Watch(
            api,
            target,
            seen=self._see_pod,
            gone=lambda _, last: self._lose_pod(last),
            health=self._health("pod", sink),
            watch_s=self._options.watch_s,
        )
        await watch.follow()

    def _see_pod(self, item: dict[str, Any]) -> None:
        pod = pod_of(item)
        own = self._place.uid or (self._pod.uid if self._pod is not None else pod.uid)
        if pod.uid != own:  # another pod has the name already
            self._lose_pod(None)
            return
        self._pod = pod
        if self._own_pod is not None and not self._own_pod.done():
            self._own_pod.set_result(pod)
        if self._node_name is not None and not self._node_name.done():
            name = self._place.node or pod.node
            if name:
                self._node_name.set_result(name)
        self._settle("pod", f"pod/{own}", pod_reading(pod))
        self._preemptor.see(pod)
        if self._node is not None:
            self._settle_node()

    def _lose_pod(self, item: dict[str, Any] | None) -> None:
        last = self._pod if item is None else pod_of(item)
        own = self._place.uid or (self._pod.uid if self._pod is not None else "")
        if last is None:
            last = pod_of({"metadata": {"name": self._place.pod, "uid": own}})
        if own and last.uid != own:
            return  # the end of a namesake
        self._pod = last
        gone = gone_of(last, now_unix_ms=self._now_unix_ms())
        self._settle("pod", f"pod/{last.uid}", Reading(events=(gone,)))

    async def _watch_node(self, api: Api, sink: NoticeSink) -> None:
        assert self._node_name is not None
        name = self._place.node or await self._node_name
        watch = Watch(
            api,
            Target(path="/api/v1/nodes", name=name, what=f"node {name}"),
            seen=self._see_node,
            gone=self._lose_node,
            health=self._health("node", sink),
            watch_s=self._options.watch_s,
        )
        await watch.follow()

    def _see_node(self, item: dict[str, Any]) -> None:
        self._node = node_of(item)
        self._settle_node()

    def _lose_node(self, name: str, last: dict[str, Any] | None) -> None:
        """Its object is gone, and its pods will be collected: the pod's own watch reports that."""
        self._node = None

    def _settle_node(self) -> None:
        node = self._node
        if node is None:
            return
        reading = self._reader.reading(
            node, self._pod, claim_unix_ms=self._claim_unix_ms, now_unix_ms=self._now_unix_ms()
        )
        self._settle("node", f"node/{node.name}", reading)

    async def _follow_claim(self, api: Api, sink: NoticeSink) -> None:
        """The NodeClaim is looked at only while Karpenter disrupts the node."""
        health = self._health("nodeclaim", sink)
        while True:
            node = self._node
            if node is not None and node.disrupted and self._claim_unix_ms is None:
                began = self._now_unix_ms()
                try:
                    await self._look_at_claim(api, node)
                    health.answered()
                except NoAnswerError as error:
                    now = self._now_unix_ms()
                    health.silent(detail=str(error), since_unix_ms=began, now_unix_ms=now)
                await asyncio.sleep(CLAIM_S)
            elif node is not None and not node.disrupted:
                self._claim_unix_ms = None
            await asyncio.sleep(CONFIRM_S)

    async def _look_at_claim(self, api: Api, node: NodeView) -> None:
        if not node.claim:
            return  # Karpenter's, and yet no NodeClaim owns it
        path = f"/apis/karpenter.sh/v1/nodeclaims/{node.claim}"
        claim = (await api.request("GET", path)).json(dict[str, Any])
        self._claim_unix_ms = claim_deadline(
            dig(claim, "metadata", "annotations"), now_unix_ms=self._now_unix_ms()
        )
        self._settle_node()

    def _settle(self, signal: str, scope: str, reading: Reading) -> None:
        if self._ledger is not None:
            left_for = self._context.left_for
            self._ledger.settle(signal, scope, remembered(reading, scope, left_for))

    def _health(self, name: str, sink: NoticeSink) -> Health:
        limit_ms = round(self._options.unknown_s * 1_000)
        return Health(source=f"{SOURCE}/{name}", limit_ms=limit_ms, sink=sink)

    # --- signals --------------------------------------------------------------------------------

    async def interpret(self, notice: Notice, *, timeout_ms: int) -> Notice | None:
        """What a bare SIGTERM means: the pod's deletion, or else an act of the kubelet."""
        if notice.native_id != "SIGTERM":
            return notice
        pod = await self._look(timeout_s=timeout_ms / 1_000)
        if pod is not None and pod.deleting:
            return None if self._ledger is not None else notice
        shuts_down = self._node is not None and self._node.shuts_down
        return msgspec.structs.replace(
            notice,
            source=SOURCE,
            native_id=f"pod/{pod.uid if pod else self._place.uid or self._place.pod}/SIGTERM",
            cause=Cause.NODE_SHUTDOWN if shuts_down else Cause.UNKNOWN,
            deadline_unix_ms=notice.received_unix_ms + self._left_ms(pod),
            detail="SIGTERM; the pod is not deleted" if pod else "SIGTERM; nobody could be asked",
        )

    async def _look(self, *, timeout_s: float) -> PodView | None:
        """The pod as it is now, or as it was last seen."""
        if self._api is None:
            return self._pod
        place = self._place
        path = f"/api/v1/namespaces/{place.namespace}/pods/{place.pod}"
        try:
            async with self._borrowed(self._api) as api:
                reply = await api.request("GET", path, timeout_s=timeout_s * 0.8)
            self._see_pod(reply.json(dict[str, Any]))
        except RefusedError as error:
            if error.status == 404 and self._pod is not None:
                self._lose_pod(None)
        except NoAnswerError:
            pass
        return self._pod

    def _left_ms(self, pod: PodView | None) -> int:
        """From SIGTERM to SIGKILL: two seconds at least, whatever preStop took."""
        grace_ms = self._context.grace_ms if pod is None else pod.grace_s * 1_000
        window_ms = self._reader.window_ms()
        if window_ms is not None:
            grace_ms = min(grace_ms, window_ms)
        return max(KUBELET_GRACE_MS, grace_ms - round(self._options.prestop_s * 1_000))

    # --- how the job stands -----------------------------------------------------------------------

    def show(self, status: JobStatus) -> None:
        """On the pod of node 0."""
        self._board.put(status)
        self._evictions.put(status)

    async def left(self, departure: Departure) -> str:
        """Answers the EvictionRequest that the job has left for.

        Raises:
            NoAnswerError: the API server did not take it; says which right is missing.
        """
        if self._api is None:
            return ""
        async with self._borrowed(self._api) as api:
            return await self._evictions.complete(api, departure)

    # --- cordon -----------------------------------------------------------------------------

    async def cordon(self, nodes: tuple[str, ...], *, timeout_ms: int) -> str:
        """Patches this node, unless somebody else writes to it at the same time.

        Raises:
            NoAnswerError: the API server refused; says which permission is missing.
        """
        if self._api is None:
            raise NoAnswerError(self._no_api)
        if self._pod_alone_goes():
            return "only this pod goes, the node stays: not cordoned"
        pod = self._pod
        names = nodes or ((self._place.node or (pod.node if pod is not None else "")),)
        if not all(names):
            raise NoAnswerError("the node's name is not known: set NODE_NAME with the downward API")
        async with self._borrowed(self._api) as api:
            limit_s = timeout_ms / 1_000
            done = await asyncio.gather(*(self._cordon(api, name, limit_s) for name in names))
        return "; ".join(done)

    @contextlib.asynccontextmanager
    async def _borrowed(self, api: Api) -> AsyncIterator[Api]:
        """Close the client, which no watch does here."""
        try:
            yield api
        finally:
            if self._ledger is None:
                await api.close()

    def _pod_alone_goes(self) -> bool:
        """A deleted pod says nothing about its node."""
        if self._pod is None or not self._pod.deleting or self._node is None:
            return False
        reading = self._reader.reading(
            self._node, self._pod, claim_unix_ms=None, now_unix_ms=self._now_unix_ms()
        )
        return not reading.events

    async def _cordon(self, api: Api, name: str, limit_s: float) -> str:
        path = f"/api/v1/nodes/{name}"
        for _ in range(CONFLICTS_MAX):
            reply = await api.request("GET", path, timeout_s=limit_s)
            node = node_of(reply.json(dict[str, Any]))
            if node.unschedulable:
                return f"{name} is cordoned already"
            patch = {
                "metadata": {
                    "resourceVersion": node.version,
                    "annotations": {OWN_CORDON: self._context.job_id},
                },
                "spec": {"unschedulable": True},
            }
            try:
                await api.request(
                    "PATCH", path, body=patch, content_type=MERGE_PATCH, timeout_s=limit_s
                )
            except RefusedError as error:
                if error.status != 409:
                    raise
            else:
                return f"{name} is cordoned"
        raise NoAnswerError(f"{name}: somebody else kept writing to it")


class _Ledgers:
    """One ledger for each scope, and the second look that some changes need."""

    def __init__(self, api: Api, sink: NoticeSink) -> None:
        self._api = api
        self._sink = sink
        self._ledgers: dict[str, Ledger] = {}
        self._latest: dict[tuple[str, str], Reading] = {}

    def settle(self, signal: str, scope: str, reading: Reading) -> None:
        self._latest[signal, scope] = reading
        ledger = self._ledgers.get(scope)
        if ledger is None:
            ledger = self._ledgers[scope] = Ledger(
                source=SOURCE,
                scope=scope,
                sink=self._sink,
                clock=self._api.clock,
                now_unix_ms=self._api.now_unix_ms,
            )
        if ledger.settle(signal, reading):
            asyncio.get_running_loop().call_later(CONFIRM_S, self._again, signal, scope, reading)

    def _again(self, signal: str, scope: str, reading: Reading) -> None:
        if self._latest.get((signal, scope)) is reading:
            self.settle(signal, scope, reading)
