"""``drainfsm run`` as process 1 of a pod, whose node ``kubectl drain`` empties."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm.core.notice import NoticeClass
from drainfsm.testing.metadata import AwsMetadataServer
from drainfsm_kit.kube.levels import Level, level
from drainfsm_kit.kube.objects import Key
from drainfsm_kit.running import DRAINFSM, POLL_S, WAIT_S, RunningJob

GRACE_S = 120
NAMESPACES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def _is_missing() -> bool:
    return subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode != 0


pytestmark = pytest.mark.skipif(_is_missing(), reason="a process namespace needs root and unshare")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Level]:
    with level("kit", tmp_path) as made:
        yield made


@contextmanager
def pod(
    here: Level, job: RunningJob, name: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """Runs the job as a kubelet would: SIGTERM once the pod is deleted, and its end reported."""
    assert here.server is not None
    server, key = here.server, Key("pods", "default", name)
    uid = server.add_pod(name, node=here.node, terminationGracePeriodSeconds=GRACE_S)["metadata"][
        "uid"
    ]
    environment = {
        "DRAINFSM_JOB": job.job,
        "DRAINFSM_STORE": job.store_url,
        "DRAINFSM_STATE_DIR": str(job.state_dir),
        "DRAINFSM_NATS": job.nats,
        "DRAINFSM_SOURCE": "kubernetes",
        "DRAINFSM_CORDON": "kubernetes",
        "DRAINFSM_GRACE": str(GRACE_S),
        "POD_NAME": name,
        "POD_NAMESPACE": "default",
        "POD_UID": uid,
        "NODE_NAME": here.node,
        "KUBECONFIG": str(here.kubeconfig),
        **variables,
    }
    process = subprocess.Popen(
        [*NAMESPACES, *DRAINFSM, "run", "--", *job.toy()],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )

    def kubelet() -> None:
        told = False
        while process.poll() is None:
            item = server.objects.get(key)
            if item is not None and "deletionTimestamp" in item["metadata"] and not told:
                told = True
                _tell_first_process(process.pid)
            threading.Event().wait(POLL_S)
        server.pods.ended(key, uid)

    watcher = threading.Thread(target=kubelet)
    watcher.start()
    try:
        yield process
    finally:
        process.kill()  # and with it everything in its namespace
        process.communicate()
        watcher.join()


def _tell_first_process(unshare: int) -> None:
    children = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)


def test_a_drained_node_is_left_and_the_next_pod_goes_on_at_the_next_step(
    here: Level, job: RunningJob
) -> None:
    """On a Spot machine, of which the cloud speaks, too: one machine, one drain."""
    with AwsMetadataServer() as aws:
        cloud = {"DRAINFSM_SOURCE": "kubernetes,aws", aws.variable: aws.endpoint}
        with pod(here, job, "llm-0", **cloud) as first:
            job.wait_anyway(lambda: job.find(e.HealthyStepReached) or None, what="a step")
            here.kubectl_now("cordon", here.node)
            job.wait_anyway(lambda: job.find(e.NoticeReceived) or None, what="the cordon")
            goes_unix_ms = aws.interrupt(in_ms=180_000)
            job.wait_anyway(lambda: job.find(e.NoticeReceived)[1:] or None, what="the cloud's")
            drain = ("drain", here.node, "--force", "--pod-selector=job=llm")
            assert "drained" in here.kubectl_now(*drain, f"--timeout={WAIT_S:g}s")
            assert first.wait(WAIT_S) == 75
    received = job.find(e.NoticeReceived)
    assert {notice.notice.source for notice in received} == {"kubernetes", "aws"}
    assert len({notice.drain_id for notice in received}) == 1
    (published,) = job.find(e.ManifestPublished)
    assert received[-1].effective_deadline_unix_ms <= goes_unix_ms + 1_000
    assert job.find(e.RequeueRecorded)[0].record.step == published.step

    here.kubectl_now("uncordon", here.node)
    with pod(here, job, "llm-1") as second:
        job.wait_anyway(lambda: job.find(e.HealthyStepReached, 2) or None, what="a step")
        here.kubectl_now("delete", "pod", "llm-1", "--wait=false")
        assert second.wait(WAIT_S) == 75
    assert job.steps(0, epoch=2)[0] == published.step + 1
    deleted = job.find(e.NoticeReceived, 2)[0].notice
    assert (deleted.source, deleted.cause) == ("kubernetes", "pod_deleted")
    assert deleted.notice_class is NoticeClass.HARD
