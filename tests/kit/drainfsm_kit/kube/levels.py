"""Where a story is played: the test server, a real control plane, a real cluster with kubelets.

``KUBEBUILDER_ASSETS``: a folder with etcd and kube-apiserver (the convention of envtest).
``KUBECONFIG`` and ``DRAINFSM_KUBE_IMAGE``: a cluster that may be cordoned, tainted and drained, and
an image with a shell that its nodes have. Many people have the first set to a cluster that they
need: without the second nothing is done to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from drainfsm_kit.kube.control_plane import control_plane
from drainfsm_kit.kube.objects import Json, Key, read
from drainfsm_kit.kube.server import KubeServer

NAMES = ("kit", "control-plane", "cluster")
AHEAD_S = 7.3
IMAGE = "DRAINFSM_KUBE_IMAGE"
STAYS = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
"""What runs to the end of its grace."""


def definition(api: str, kind: str, plural: str, *, scope: str = "Namespaced") -> Json:
    """Of a kind that somebody else's controller brings; whatever it holds is taken."""
    group, _, version = api.rpartition("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": scope, "names": names, "versions": [served]},
    }


def missing(name: str) -> str:
    """Why a level cannot be played here; empty: it can."""
    match name:
        case "control-plane" if not os.environ.get("KUBEBUILDER_ASSETS"):
            return "KUBEBUILDER_ASSETS names no folder with etcd and kube-apiserver"
        case "cluster" if not (os.environ.get("KUBECONFIG") and os.environ.get(IMAGE)):
            return f"KUBECONFIG and {IMAGE} name no cluster that may be drained"
    return ""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster, seen with kubectl."""

    name: str
    kubeconfig: Path
    node: str
    server: KubeServer | None = None

    @property
    def ahead_s(self) -> float:
        return 0.0 if self.server is None else self.server.objects.ahead_s

    @property
    def runs_pods(self) -> bool:
        return self.name == "cluster"

    @property
    def has_controllers(self) -> bool:
        return self.name != "control-plane"

    async def kubectl(self, *args: str, given: Any = None) -> str:
        """Raises: RuntimeError: kubectl failed; says how."""
        return await asyncio.to_thread(self.kubectl_now, *args, given=given)

    def kubectl_now(self, *args: str, given: Any = None) -> str:
        done = subprocess.run(
            [kubectl(), "--kubeconfig", str(self.kubeconfig), *args],
            input=None if given is None else json.dumps(given),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(args)}: {done.stderr}")
        return done.stdout

    def define(self, kind: Json) -> None:
        """Makes a ``definition`` known; the test server knows what it knows."""
        if self.server is None:
            self.kubectl_now("apply", "--validate=false", "-f", "-", given=kind)
            name = kind["metadata"]["name"]
            self.kubectl_now("wait", "--for=condition=Established", f"crd/{name}")

    async def pod(self, name: str) -> Json:
        found: Json = json.loads(await self.kubectl("get", "pod", name, "-o", "json"))
        return found

    async def deadline_unix_ms(self, name: str) -> int:
        """The pod's ``deletionTimestamp``, by our clock."""
        pod = await self.pod(name)
        return round((read(pod["metadata"]["deletionTimestamp"]) - self.ahead_s) * 1_000)

    async def make_pod(self, grace_s: int = 30, **spec: Any) -> str:
        """A pod on the level's node, running where pods run. Its name."""
        name = f"llm-{uuid.uuid4().hex[:8]}"
        await asyncio.to_thread(self._make_pod, name, grace_s, spec)
        return name

    def _make_pod(self, name: str, grace_s: int, spec: Json) -> None:
        spec = {"terminationGracePeriodSeconds": grace_s, **spec}
        if self.server is not None:
            self.server.add_pod(name, node=self.node, **spec)
            return
        item = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"job": "llm"}},
            "spec": {
                "nodeName": self.node,
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "main",
                        "image": image(),
                        "imagePullPolicy": "IfNotPresent",
                        "command": STAYS,
                    }
                ],
                **spec,
            },
        }
        self.kubectl_now("create", "--validate=false", "-f", "-", given=item)
        if self.runs_pods:
            self.kubectl_now("wait", "pod", name, "--for=condition=Ready", "--timeout=60s")

    async def make_claim(self) -> Json:
        """A NodeClaim that the level's node belongs to."""
        name = f"claim-{uuid.uuid4().hex[:8]}"
        item = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": name}}
        if self.server is not None:
            claim = self.server.objects.create(Key("nodeclaims", "", name), item)
        else:
            create = ("create", "--validate=false", "-f", "-", "-o", "json")
            claim = json.loads(await self.kubectl(*create, given=item))
        owner = {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "name": name,
            "uid": claim["metadata"]["uid"],
        }
        await self.patch_node({"metadata": {"ownerReferences": [owner]}})
        return claim

    async def patch_node(self, patch: Json, *, subresource: str = "") -> None:
        more = [f"--subresource={subresource}"] if subresource and self.server is None else []
        await self.kubectl(
            *("patch", "node", self.node, "--type=merge", "-p", json.dumps(patch)), *more
        )

    async def disrupt(self, name: str, reason: str, *, status: str = "True") -> None:
        """DisruptionTarget, and nothing else."""
        if self.server is not None:
            self.server.pods.disrupt(Key("pods", "default", name), reason, status=status)
            return
        condition = {
            "type": "DisruptionTarget",
            "status": status,
            "reason": reason,
            "message": "",
            "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        patch = {"status": {"conditions": [condition]}}
        await self.kubectl(
            *("patch", "pod", name, "--subresource=status", "-p", json.dumps(patch)),
        )

    def clean(self) -> None:
        """As it was before a story."""
        if self.server is not None:
            for pod in self.server.objects.every("pods"):
                self.server.objects.remove(Key("pods", "default", pod["metadata"]["name"]))
            ready = [{"type": "Ready", "status": "True"}]
            self.server.patch_node(self.node, {"status": {"conditions": ready}})
        else:
            self.kubectl_now(
                *("delete", "pods", "-l", "job=llm", "--force", "--grace-period=0"),
                "--ignore-not-found",
            )
        patch = {
            "spec": {"unschedulable": None, "taints": None},
            "metadata": {"ownerReferences": None, "annotations": {"drainfsm.io/cordoned-by": None}},
        }
        self.kubectl_now("patch", "node", self.node, "--type=merge", "-p", json.dumps(patch))
        if self.name == "control-plane":
            status = json.dumps({"status": {"conditions": []}})
            self.kubectl_now(
                *("patch", "node", self.node, "--subresource=status", "--type=merge", "-p", status)
            )


def image() -> str:
    """With a shell in it."""
    return os.environ.get(IMAGE, "none")  # where there is no kubelet, nobody pulls it


def kubectl() -> str:
    """The one that was installed with the tests."""
    beside = Path(sys.executable).with_name("kubectl")
    return str(beside) if beside.exists() else shutil.which("kubectl") or "kubectl"


@contextlib.contextmanager
def level(name: str, directory: Path) -> Iterator[Level]:
    """A level that is not ``missing``."""
    match name:
        case "kit":
            with KubeServer(ahead_s=AHEAD_S) as server:
                server.add_node()
                config = server.kubeconfig(directory / "kubeconfig")
                yield Level(name=name, kubeconfig=config, node="node-a", server=server)
        case "control-plane":
            with control_plane(Path(os.environ["KUBEBUILDER_ASSETS"]), directory) as config:
                made = Level(name=name, kubeconfig=config, node="node-a")
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}
                made.kubectl_now("create", "--validate=false", "-f", "-", given=node)
                _define_claims(made)
                yield made
        case _:
            config = Path(os.environ["KUBECONFIG"])
            first = Level(name=name, kubeconfig=config, node="")
            nodes = json.loads(first.kubectl_now("get", "nodes", "-o", "json"))["items"]
            made = msgspec.structs.replace(first, node=nodes[-1]["metadata"]["name"])
            _define_claims(made)
            try:
                yield made
            finally:
                made.clean()


def _define_claims(made: Level) -> None:
    made.define(definition("karpenter.sh/v1", "NodeClaim", "nodeclaims", scope="Cluster"))
