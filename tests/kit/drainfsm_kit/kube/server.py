"""The API server itself: HTTP/1.1 on loopback, watches in chunks, and every fault that real ones
and the load balancers before them have, on demand.

By hand: ``python -m drainfsm_kit.kube.server`` serves a node with a pod, and prints a kubeconfig.
"""

from __future__ import annotations

import base64
import contextlib
import json
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

from drainfsm_kit.kube.evictions import Evictions, Invalid
from drainfsm_kit.kube.objects import (
    Conflict,
    Json,
    Key,
    Objects,
    merged,
    selected,
    selector_of,
    written,
)
from drainfsm_kit.kube.pods import BudgetError, Pods
from drainfsm_kit.kube.tls import loopback_tls

RESOURCES: dict[str, dict[str, tuple[str, bool]]] = {
    "v1": {
        "pods": ("Pod", True),
        "nodes": ("Node", False),
        "events": ("Event", True),
        "namespaces": ("Namespace", False),
        "services": ("Service", True),
        "serviceaccounts": ("ServiceAccount", True),
    },
    "batch/v1": {"jobs": ("Job", True)},
    "networking.k8s.io/v1": {"networkpolicies": ("NetworkPolicy", True)},
    "rbac.authorization.k8s.io/v1": {
        "roles": ("Role", True),
        "rolebindings": ("RoleBinding", True),
        "clusterroles": ("ClusterRole", False),
        "clusterrolebindings": ("ClusterRoleBinding", False),
    },
    "jobset.x-k8s.io/v1alpha2": {"jobsets": ("JobSet", True)},
    "kueue.x-k8s.io/v1beta1": {
        "resourceflavors": ("ResourceFlavor", False),
        "clusterqueues": ("ClusterQueue", False),
        "localqueues": ("LocalQueue", True),
    },
    "trainer.kubeflow.org/v1alpha1": {
        "trainingruntimes": ("TrainingRuntime", True),
        "trainjobs": ("TrainJob", True),
    },
    "monitoring.coreos.com/v1": {"servicemonitors": ("ServiceMonitor", True)},
    "policy/v1": {"poddisruptionbudgets": ("PodDisruptionBudget", True)},
    "apps/v1": {"daemonsets": ("DaemonSet", True)},
    "karpenter.sh/v1": {"nodeclaims": ("NodeClaim", False)},
    "lifecycle.k8s.io/v1alpha1": {"evictions": ("Eviction", True)},
}
APPLY = "application/apply-patch+yaml"
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
BOOKMARK_S = 2.0
"""Real ones send them about once a minute."""

TOKEN = "kit-token"
T = TypeVar("T")


class KubeServer:
    """``with KubeServer() as server``: a cluster with no objects, until they are put there."""

    def __init__(self, *, ahead_s: float = 0.0, kubelet: bool = True) -> None:
        self.objects = Objects(ahead_s=ahead_s)
        self.pods = Pods(self.objects, kubelet=kubelet)
        self.evictions = Evictions(self.objects, self.pods)
        self.tokens = {TOKEN}
        self.forbidden: set[tuple[str, str]] = set()
        """Verb and resource."""

        self.closes_after_s: float | None = None
        """A load balancer that ends every watch, cleanly, so soon."""

        self.muted = False
        """Half open: connections stay, and nothing comes out of them."""

        self.slow_s = 0.0
        self.throttled = 0
        """So many more requests are answered 429."""

        self.garbage: bytes | None = None
        """The next line of every watch."""

        self.expired_as_status = False
        """410 as the answer's own status, as an aggregated API gives it."""

        self.requests: list[tuple[str, str]] = []
        """Method and path with query, in their order."""

        self._streams: set[socket.socket] = set()
        self._ending = threading.Event()
        self._closed_watches = 0
        self._certificate, tls = loopback_tls()
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.kube, self._http.tls = self, tls
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def certificate(self) -> bytes:
        """PEM; its own authority."""
        return self._certificate

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.pods.close()
        self.reset()
        self._http.shutdown()
        self._http.server_close()

    # --- faults ---------------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        return self._ending.is_set()

    @property
    def closed_watches(self) -> int:
        return self._closed_watches

    @property
    def watch_count(self) -> int:
        return len(self._streams)

    def close_watches(self) -> None:
        """Cleanly, as at the end of their time."""
        with self.objects.changed:
            self._closed_watches += 1
            self.objects.changed.notify_all()

    def reset(self) -> None:
        """RST on every open watch."""
        for stream in list(self._streams):
            with contextlib.suppress(OSError):
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stream.shutdown(socket.SHUT_RD)
                stream.close()
        with self.objects.changed:
            self.objects.changed.notify_all()

    @contextlib.contextmanager
    def streaming(self, stream: socket.socket) -> Iterator[None]:
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)

    # --- a cluster ------------------------------------------------------------------------------

    def add_node(self, name: str = "node-a", **more: Any) -> Json:
        spec = {"taints": more.pop("taints", [])}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        item = {"metadata": more, "spec": spec, "status": status}
        return self.objects.create(Key("nodes", "", name), item)

    def add_pod(self, name: str = "llm-0", *, node: str = "node-a", **spec: Any) -> Json:
        now = written(self.objects.now_unix_s())
        item = {
            "metadata": {"labels": {"job": "llm"}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "llm"}], **spec},
            "status": {"phase": "Running", "startTime": now},
        }
        item["spec"].setdefault("terminationGracePeriodSeconds", 30)
        return self.objects.create(Key("pods", "default", name), item)

    def patch_node(self, name: str, patch: Json) -> Json:
        def change(item: Json) -> None:
            result = merged(item, patch)
            item.clear()
            item.update(result)

        with self.objects.changed:
            node = self.objects.update(Key("nodes", "", name), change)
            self.pods.on_node(node)
            return node

    def kubeconfig(self, path: Path, *, token: str = TOKEN) -> Path:
        """For kubectl, and for an adapter."""
        authority = base64.b64encode(self.certificate).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "kit",
            "clusters": [{"name": "kit", "cluster": cluster}],
            "users": [{"name": "kit", "user": {"token": token}}],
            "contexts": [{"name": "kit", "context": {"cluster": "kit", "user": "kit"}}],
        }
        path.write_text(json.dumps(config))
        return path


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    kube: KubeServer
    tls: ssl.SSLContext

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The handshake belongs into the connection's own thread."""
        with contextlib.suppress(OSError):
            secure = self.tls.wrap_socket(request, server_side=True)
            try:
                super().finish_request(secure, client_address)
            finally:
                secure.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Refusal(Exception):  # noqa: N818
    def __init__(self, status: int, reason: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.headers: dict[str, str] = more.pop("headers", {})
        self.body = _status(status, reason, message, **more)


def _status(code: int, reason: str, message: str, **details: Any) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure" if code >= 400 else "Success",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    _kind = ("", "")
    _closed = 0

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests read ``KubeServer.requests``."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self.server.kube.objects.now_unix_s(), usegmt=True)

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        kube = self.server.kube
        self._closed = kube.closed_watches  # from here on a close is meant for this one, too
        kube.requests.append((method, self.path))
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        body = json.loads(self._read_body() or b"null")
        time.sleep(kube.slow_s)
        while kube.muted and not kube.ending:
            time.sleep(0.05)
        try:
            if kube.throttled > 0:
                kube.throttled -= 1
                raise _Refusal(
                    429,
                    "TooManyRequests",
                    "too many requests, please try again later",
                    headers={"Retry-After": "1"},
                )
            self._authenticate()
            self._route(method, url.path.strip("/").split("/"), query, body)
        except _Refusal as refusal:
            self._answer(refusal.status, refusal.body, refusal.headers)
        except (BrokenPipeError, ConnectionError):
            self.close_connection = True

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _authenticate(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.server.kube.tokens:
            raise _Refusal(401, "Unauthorized", "Unauthorized")

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    # --- routes ---------------------------------------------------------------------------------

    def _route(self, method: str, parts: list[str], query: dict[str, str], body: Any) -> None:
        match parts:
            case ["version"]:
                return self._answer(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
            case ["api"]:
                return self._answer(200, {"kind": "APIVersions", "versions": ["v1"]})
            case ["apis"]:
                return self._answer(200, _groups())
            case ["api", "v1"]:
                return self._answer(200, _resource_list("v1"))
            case ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"]:
                asked = body["spec"]["resourceAttributes"]
                right = (asked["verb"], asked["resource"])
                allowed = right not in self.server.kube.forbidden
                return self._answer(201, {**body, "status": {"allowed": allowed}})
            case ["apis", group, version] if f"{group}/{version}" in RESOURCES:
                return self._answer(200, _resource_list(f"{group}/{version}"))
            case ["api", "v1", *rest]:
                return self._resource("v1", method, rest, query, body)
            case ["apis", group, version, *rest] if f"{group}/{version}" in RESOURCES:
                return self._resource(f"{group}/{version}", method, rest, query, body)
        raise _Refusal(404, "NotFound", "the server could not find the requested resource")

    def _resource(
        self, api: str, method: str, rest: list[str], query: dict[str, str], body: Any
    ) -> None:
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource, name, sub = (*rest, "", "", "")[:3]
        if resource not in RESOURCES[api]:
            raise _Refusal(404, "NotFound", "the server could not find the requested resource")
        self._kind = api, RESOURCES[api][resource][0]
        watch = query.get("watch") in ("1", "true")
        verb = {
            "GET": "watch" if watch else "get" if name else "list",
            "POST": "create",
            "PATCH": "patch",
            "DELETE": "delete",
        }[method]
        self._authorize(verb, f"{resource}/{sub}" if sub else resource, api, namespace)
        key = Key(resource, namespace, name)
        match verb:
            case "watch":
                self._watch(key, query)
            case "list":
                self._list(api, key, query)
            case "get":
                self._answer(200, self._dressed(self._found(key)))
            case "create" if sub == "eviction":
                self._evict(key, body, query)
            case "create":
                name = body["metadata"].get("name") or body["metadata"]["generateName"] + "x"
                made = self._writing(lambda: self._objects.create(key._replace(name=name), body))
                self._answer(201, self._dressed(made))
            case "patch" if self.headers["Content-Type"] == APPLY and resource == "evictions":
                self._answer(200, self._dressed(self._apply(key, body)))
            case "patch":
                self._patch(key, body)
            case "delete":
                self._delete(key, body)

    @property
    def _objects(self) -> Objects:
        return self.server.kube.objects

    def _authorize(self, verb: str, resource: str, api: str, namespace: str) -> None:
        if (verb, resource) in self.server.kube.forbidden:
            group = api.rpartition("/")[0]
            where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            raise _Refusal(
                403,
                "Forbidden",
                f'{resource} is forbidden: User "system:serviceaccount:default:llm" cannot {verb} '
                f'resource "{resource}" in API group "{group}"{where}',
            )

    def _found(self, key: Key) -> Json:
        found = self._objects.get(key)
        if found is None:
            raise _Refusal(404, "NotFound", f'{key.resource} "{key.name}" not found')
        return found

    def _dressed(self, item: Json) -> Json:
        api, kind = self._kind
        return {"apiVersion": api, "kind": kind, **item}

    def _filters(self, query: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        return selector_of(query.get("fieldSelector", "")), selector_of(
            query.get("labelSelector", "")
        )

    def _list(self, api: str, key: Key, query: dict[str, str]) -> None:
        fields, labels = self._filters(query)
        with self._objects.changed:
            version = self._objects.version
            found = self._objects.every(key.resource, key.namespace)
        items = [self._dressed(item) for item in found if selected(item, fields, labels)]
        self._answer(
            200,
            {
                "kind": f"{RESOURCES[api][key.resource][0]}List",
                "apiVersion": api,
                "metadata": {"resourceVersion": str(version)},
                "items": items,
            },
        )

    def _writing(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except Conflict as error:
            raise _Refusal(409, "Conflict", str(error)) from error
        except KeyError as error:
            raise _Refusal(404, "NotFound", f"{error} not found") from error
        except Invalid as error:
            raise _Refusal(422, "Invalid", str(error)) from error

    def _apply(self, key: Key, body: Json) -> Json:
        return self._writing(lambda: self.server.kube.evictions.apply(key, body))

    def _patch(self, key: Key, patch: Json) -> None:
        def change(item: Json) -> None:
            wanted = (patch.get("metadata") or {}).get("resourceVersion")
            if wanted not in (None, item["metadata"]["resourceVersion"]):
                raise Conflict(
                    f'Operation cannot be fulfilled on {key.resource} "{key.name}": the object has '
                    "been modified; please apply your changes to the latest version and try again"
                )
            result = merged(item, patch)
            item.clear()
            item.update(result)

        with self._objects.changed:
            patched = self._writing(lambda: self._objects.update(key, change))
            if key.resource == "nodes":
                self.server.kube.pods.on_node(patched)
        self._answer(200, self._dressed(patched))

    def _delete(self, key: Key, options: Json | None) -> None:
        if key.resource == "pods":
            gone = self._writing(lambda: self.server.kube.pods.delete(key, options))
        else:
            gone = self._writing(lambda: self._objects.remove(key))
        self._answer(200, self._dressed(gone))

    def _evict(self, key: Key, eviction: Json, query: dict[str, str]) -> None:
        options = eviction.get("deleteOptions") or {}
        dry_run = "All" in (query.get("dryRun"), *(options.get("dryRun") or ()))
        try:
            self._writing(lambda: self.server.kube.pods.evict(key, eviction, dry_run=dry_run))
        except BudgetError as error:
            raise _Refusal(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                causes=[{"reason": "DisruptionBudget", "message": f"The budget {error} needs it"}],
            ) from error
        self._answer(201, _status(201, "", ""))

    # --- watch ----------------------------------------------------------------------------------

    def _watch(self, key: Key, query: dict[str, str]) -> None:
        kube = self.server.kube
        version = int(query.get("resourceVersion") or self._objects.version)
        expired = _status(
            410, "Expired", f"too old resource version: {version} ({self._objects.version})"
        )
        if version < self._objects.compacted and kube.expired_as_status:
            self._answer(410, expired)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with kube.streaming(self.connection):
            if version < self._objects.compacted:
                self._send({"type": "ERROR", "object": expired})
            else:
                self._follow(key, query, version)
            with contextlib.suppress(OSError, ValueError):
                self.wfile.write(b"0\r\n\r\n")
                self.wfile.flush()
        self.close_connection = True

    def _follow(self, key: Key, query: dict[str, str], version: int) -> None:
        kube = self.server.kube
        limit_s = float(query.get("timeoutSeconds", 1_800))
        if kube.closes_after_s is not None:
            limit_s = min(limit_s, kube.closes_after_s)
        ends = time.monotonic() + limit_s
        bookmarked = time.monotonic()
        if query.get("sendInitialEvents") == "true":
            version = self._send_all(key, query)
        while time.monotonic() < ends and kube.closed_watches == self._closed and not kube.ending:
            with self._objects.changed:
                changes = self._objects.since(version)
                if not changes:
                    self._objects.changed.wait(min(0.2, max(0.0, ends - time.monotonic())))
                    changes = self._objects.since(version)
                version = self._objects.version
            if select.select([self.connection], [], [], 0)[0]:
                return  # the client has nothing more to say but goodbye
            if kube.muted:
                version = changes[0].version - 1 if changes else version
                time.sleep(0.05)
                continue
            if kube.garbage is not None:
                garbage, kube.garbage = kube.garbage, None
                self._chunk(garbage + b"\n")
            for change in changes:
                if (change.key.resource, change.key.namespace) != (key.resource, key.namespace):
                    continue
                if selected(change.object, *self._filters(query)):
                    self._send({"type": change.type, "object": self._dressed(change.object)})
            if time.monotonic() - bookmarked > BOOKMARK_S and query.get("allowWatchBookmarks"):
                bookmarked = time.monotonic()
                mark = {"metadata": {"resourceVersion": str(version), "creationTimestamp": None}}
                self._send({"type": "BOOKMARK", "object": self._dressed(mark)})

    def _send_all(self, key: Key, query: dict[str, str]) -> int:
        """A list in the form of a watch."""
        with self._objects.changed:
            version = self._objects.version
            found = self._objects.every(key.resource, key.namespace)
        for item in found:
            if selected(item, *self._filters(query)):
                self._send({"type": "ADDED", "object": self._dressed(item)})
        end = {"k8s.io/initial-events-end": "true"}
        mark = {"metadata": {"resourceVersion": str(version), "annotations": end}}
        self._send({"type": "BOOKMARK", "object": self._dressed(mark)})
        return version

    def _send(self, event: Json) -> None:
        self._chunk(json.dumps(event).encode() + b"\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _groups() -> Json:
    groups = []
    for api in RESOURCES:
        group, _, version = api.rpartition("/")
        if group:
            entry = {"groupVersion": api, "version": version}
            groups.append({"name": group, "versions": [entry], "preferredVersion": entry})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _resource_list(api: str) -> Json:
    found: list[Json] = []
    for resource, (kind, namespaced) in RESOURCES[api].items():
        single = kind.lower()
        shape = {"singularName": single, "namespaced": namespaced, "kind": kind, "verbs": VERBS}
        short = {"pods": ["po"], "nodes": ["no"], "namespaces": ["ns"]}.get(resource)
        found.append({"name": resource, **shape, **({"shortNames": short} if short else {})})
    if api == "v1":
        found.append(
            {
                "name": "pods/eviction",
                "singularName": "",
                "namespaced": True,
                "group": "policy",
                "version": "v1",
                "kind": "Eviction",
                "verbs": ["create"],
            }
        )
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": found}


def main() -> None:
    with KubeServer() as server:
        server.add_node()
        server.add_pod()
        config = server.kubeconfig(Path("kit-kubeconfig.json"))
        print(f"export KUBECONFIG={config.absolute()} POD_NAME=llm-0", flush=True)  # noqa: T201
        threading.Event().wait()


if __name__ == "__main__":
    main()
