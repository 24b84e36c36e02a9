"""How the job stands, on the pod of node 0: annotations for schedulers to read, and Events."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from drainfsm.adapter import JobStatus
from drainfsm_adapters.kubernetes_client import MERGE_PATCH, Api
from drainfsm_adapters.kubernetes_objects import PodView
from drainfsm_adapters.metadata import NoAnswerError

log = logging.getLogger("drainfsm.adapters.kubernetes")

PREFIX = "drainfsm.io/"
PACE_S = 5.0
"""Between two patches while no drain is on; otherwise every save would be one."""

SAID = {
    "scheduled": ("DrainScheduled", "Normal", "a drain is due"),
    "noticed": ("Draining", "Warning", "a drain has begun"),
    "published": ("CheckpointCommitted", "Normal", "the drain's checkpoint is committed"),
    "leaving": ("Leaving", "Normal", "the job leaves on what is committed"),
    "cancelled": ("DrainCancelled", "Normal", "the drain is called off"),
}
"""Reason, type and text of the Event at the first sight of a phase."""


class Board:
    """Shows the latest standing, and skips what it could not show in time."""

    def __init__(self) -> None:
        self._latest: JobStatus | None = None
        self._shown: JobStatus | None = None
        self._said: set[tuple[str, int | None]] = set()
        self._changed = asyncio.Event()
        self._failed = ""

    def put(self, job_status: JobStatus) -> None:
        if job_status != self._latest:
            self._latest = job_status
            self._changed.set()

    async def follow(self, api: Api, pod: asyncio.Future[PodView], namespace: str) -> None:
        """Until cancelled."""
        view = await pod
        while True:
            await self._changed.wait()
            self._changed.clear()
            job_status = self._latest
            if job_status is None or job_status == self._shown:
                continue
            await self.show(api, view, namespace, job_status)
            if job_status.deadline_unix_ms is None:
                await asyncio.sleep(PACE_S)

    async def show(self, api: Api, pod: PodView, namespace: str, job_status: JobStatus) -> None:
        """What cannot be shown is logged, once for every reason."""
        path = f"/api/v1/namespaces/{namespace}"
        patch = {"metadata": {"annotations": annotations_of(job_status), "uid": pod.uid}}
        try:
            await api.request(
                "PATCH", f"{path}/pods/{pod.name}", body=patch, content_type=MERGE_PATCH
            )
            self._shown = job_status
            mark = (job_status.phase, job_status.deadline_unix_ms)
            if job_status.phase in SAID and mark not in self._said:
                self._said.add(mark)
                event = event_of(job_status, pod, namespace, now_unix_ms=api.now_unix_ms())
                await api.request("POST", f"{path}/events", body=event)
        except NoAnswerError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.warning("kubernetes: the pod does not show how the job stands: %s", error)


def annotations_of(job_status: JobStatus) -> dict[str, str | None]:
    """None: it is removed."""
    return {
        f"{PREFIX}state": job_status.phase,
        f"{PREFIX}attempt": str(job_status.epoch),
        f"{PREFIX}deadline": written(job_status.deadline_unix_ms),
        f"{PREFIX}committed-step": (
            None if job_status.committed_step is None else str(job_status.committed_step)
        ),
        f"{PREFIX}committed-at": written(job_status.committed_unix_ms),
    }


def event_of(
    job_status: JobStatus, pod: PodView, namespace: str, *, now_unix_ms: int
) -> dict[str, Any]:
    reason, kind, text = SAID[job_status.phase]
    step = job_status.committed_step
    at = "nothing is committed" if step is None else f"step {step} is committed"
    deadline = written(job_status.deadline_unix_ms)
    now = written(now_unix_ms)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{pod.name}.", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod.name,
            "namespace": namespace,
            "uid": pod.uid,
        },
        "reason": reason,
        "type": kind,
        "message": f"{text}; {at}" + (f"; deadline {deadline}" if deadline else ""),
        "source": {"component": "drainfsm"},
        "reportingComponent": "drainfsm",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def written(at_unix_ms: int | None) -> str | None:
    """RFC 3339, whole seconds."""
    if at_unix_ms is None:
        return None
    return datetime.fromtimestamp(at_unix_ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
