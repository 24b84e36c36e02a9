"""``[adapters.kubernetes]``, and which pod on which node this is."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import msgspec

from drainfsm.errors import ConfigError

SOURCE = "kubernetes"
WATCH_S_MIN, WATCH_S_MAX = 5.0, 280.0
"""Load balancers drop connections that are silent for 350 s, some sooner."""


class KubernetesOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in seconds."""

    pod: str = ""
    """This pod's name; empty: ``POD_NAME``, else the host's name."""

    namespace: str = ""
    """Empty: ``POD_NAMESPACE``, else the service account's, else the kubeconfig's."""

    uid: str = ""
    """This pod's uid; empty: ``POD_UID``, else that of the first pod seen under the name."""

    node: str = ""
    """This node's name; empty: ``NODE_NAME``, else where the pod runs."""

    kubeconfig: str = ""
    """A kubeconfig; empty: the service account of the pod, else ``KUBECONFIG``."""

    watch_s: float = 60.0
    """A watch is renewed after this long, which limits the harm of a connection that died
    silently."""

    timeout_s: float = 5.0
    """For every other call."""

    unknown_s: float = 30.0
    """A watch that has been silent for this long is reported."""

    nodes: bool = True
    """Hear of the node, too: needs a ClusterRole."""

    node_s: float = 300.0
    """For a cordon, or a taint that states no time: as if the node went away this long after it."""

    candidate_s: float = 600.0
    """From the autoscaler's candidate taint until it may act on it."""

    taints: str = ""
    """More taint keys that announce an end of the node, comma-separated."""

    shutdown_s: float = 0.0
    """What the kubelet's graceful shutdown (or Spot's) leaves a pod, where that is less than its
    grace: 15 on GKE Spot; 0: the grace counts."""

    prestop_s: float = 0.0
    """What a preStop hook may have used of the grace when SIGTERM comes, where nobody can be asked
    for the deadline."""

    annotate: bool = True
    """Show the drain's state on the pod: annotations and an Event."""


class PodPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Which pod this is, as far as the environment says."""

    pod: str
    namespace: str
    uid: str
    node: str


def kubernetes_options(options: Mapping[str, str]) -> KubernetesOptions:
    """Raises: ConfigError: an unknown key, or an invalid value; names it."""
    try:
        loaded = msgspec.convert(dict(options), KubernetesOptions, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(sorted(KubernetesOptions.__struct_fields__))
        raise ConfigError(f"[adapters.{SOURCE}] {error} (known keys: {known})") from error
    if not WATCH_S_MIN <= loaded.watch_s <= WATCH_S_MAX:
        raise ConfigError(
            f"[adapters.{SOURCE}] watch_s = {loaded.watch_s:g}: take {WATCH_S_MIN:g} to "
            f"{WATCH_S_MAX:g} seconds"
        )
    for name in ("timeout_s", "unknown_s"):
        if not getattr(loaded, name) > 0:
            raise ConfigError(f"[adapters.{SOURCE}] {name}: must be above 0")
    for name in ("node_s", "candidate_s", "shutdown_s", "prestop_s"):
        if getattr(loaded, name) < 0:
            raise ConfigError(f"[adapters.{SOURCE}] {name}: must not be negative")
    return loaded


def place_of(
    options: KubernetesOptions, environment: Mapping[str, str], *, default_namespace: str
) -> PodPlace:
    """Raises: ConfigError: a name is not one that Kubernetes could have given."""
    place = PodPlace(
        pod=options.pod or environment.get("POD_NAME", "") or socket.gethostname(),
        namespace=options.namespace or environment.get("POD_NAMESPACE", "") or default_namespace,
        uid=options.uid or environment.get("POD_UID", ""),
        node=options.node or environment.get("NODE_NAME", ""),
    )
    for name in ("pod", "namespace", "node"):
        value = getattr(place, name)
        if not all(c.isalnum() or c in "-." for c in value) or (name != "node" and not value):
            raise ConfigError(
                f"kubernetes: {value!r} is not a name of a {name}; is the downward API's "
                f"fieldRef missing from the pod's template?"
            )
    return place
