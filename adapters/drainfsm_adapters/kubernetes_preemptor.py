"""Which job the scheduler makes room for. Its event names the pod; the condition of ours does not.

The event comes milliseconds after the condition, which the drain does not wait for: who it is
follows as a notice of its own that is only recorded.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

from drainfsm.adapter import NoticeSink
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm_adapters.kubernetes_client import Api
from drainfsm_adapters.kubernetes_objects import RESPONDERS, PodView, each, text
from drainfsm_adapters.kubernetes_options import SOURCE
from drainfsm_adapters.metadata import NoAnswerError

PREEMPTION = "PreemptionByScheduler"
"""Reason of DisruptionTarget."""

TRIES_S = (0.2, 0.5, 1.5, 4.0)
"""From one look for the event to the next."""

JOB_VARIABLE = "DRAINFSM_JOB"
JOB_LABELS = ("jobset.sigs.k8s.io/jobset-name", "batch.kubernetes.io/job-name")

_BY_UID = re.compile(r"Preempted by pod ([0-9a-f-]{36}) on node ([a-z0-9.-]+)")
_BY_NAME = re.compile(r"Preempted by ([a-z0-9-]+)/([a-z0-9.-]+) on node ([a-z0-9.-]+)")

log = logging.getLogger("drainfsm.adapters.kubernetes")


class Preemptor:
    """Of the own pod."""

    def __init__(self) -> None:
        self._preempted: asyncio.Queue[PodView] = asyncio.Queue()
        self._uid = ""

    def see(self, pod: PodView) -> None:
        disruption = pod.condition("DisruptionTarget")
        if disruption is not None and disruption.reason == PREEMPTION and pod.uid != self._uid:
            self._uid = pod.uid
            self._preempted.put_nowait(pod)

    async def follow(self, api: Api, namespace: str, sink: NoticeSink) -> None:
        """Puts on record who takes the place of the pod, if the scheduler says so within seconds.
        Runs until cancelled."""
        while True:
            pod = await self._preempted.get()
            try:
                said = await _said(api, pod, namespace)
                if said:
                    job = await _job_of(api, said, namespace)
                    sink.notice(_notice(pod, job, said, now_unix_ms=api.now_unix_ms()))
            except NoAnswerError as error:
                log.warning("kubernetes: it is not known which job preempts this one: %s", error)


async def _said(api: Api, pod: PodView, namespace: str) -> str:
    """The scheduler's message; empty: there is none."""
    selector = f"involvedObject.uid={pod.uid},reason=Preempted"
    path = f"/api/v1/namespaces/{namespace}/events"
    for pause_s in TRIES_S:
        await asyncio.sleep(pause_s)
        reply = await api.request("GET", path, query={"fieldSelector": selector})
        for one in each(reply.json(dict[str, Any]), "items"):
            return text(one, "message")
    return ""


async def _job_of(api: Api, said: str, namespace: str) -> str:
    """The job behind the pod that is named; where it cannot be read, the pod as it is named."""
    if match := _BY_NAME.search(said):
        query = {"fieldSelector": f"metadata.name={match[2]}"}
        namespace, fallback, uid = match[1], f"{match[1]}/{match[2]}", ""
    elif match := _BY_UID.search(said):
        query = {"fieldSelector": f"status.nominatedNodeName={match[2]}"}
        fallback, uid = f"pod/{match[1]}", match[1]
    else:
        return said[:200]
    try:
        path = f"/api/v1/namespaces/{namespace}/pods"
        found = (await api.request("GET", path, query=query)).json(dict[str, Any])
    except NoAnswerError:
        return fallback  # of a namespace that is not ours to read
    for item in each(found, "items"):
        if uid in ("", text(item, "metadata", "uid")):
            return job_of_pod(item)
    return fallback


def job_of_pod(item: dict[str, Any]) -> str:
    """The name that drainfsm knows the job by, else what Kubernetes calls it."""
    for container in each(item, "spec", "containers"):
        for variable in each(container, "env"):
            if text(variable, "name") == JOB_VARIABLE and text(variable, "value"):
                return text(variable, "value")
    for responder in each(item, "spec", "evictionResponders"):
        if text(responder, "name").startswith(RESPONDERS):
            return text(responder, "name").removeprefix(RESPONDERS)
    labels = (text(item, "metadata", "labels", label) for label in JOB_LABELS)
    pod = f"{text(item, 'metadata', 'namespace')}/{text(item, 'metadata', 'name')}"
    return next(filter(None, labels), pod)


def _notice(pod: PodView, job: str, said: str, *, now_unix_ms: int) -> Notice:
    return Notice(
        source=SOURCE,
        native_id=f"pod/{pod.uid}/preemptor",
        cause=Cause.PREEMPTION,
        notice_class=NoticeClass.HARD,
        deadline_unix_ms=None,
        received_unix_ms=now_unix_ms,
        detail=said[:300],
        advisory=True,
        evicted_by=job,
    )
