"""The manifests and the chart: by schemas, by our own settings, and by an API server."""

from __future__ import annotations

import json
import time
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from drainfsm.cli import notify, stream
from drainfsm.cli.settings import Settings, load_settings
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.runtime.coordinator.attempt_end import FENCED_EXIT_CODE, NO_PROGRESS_EXIT_CODE
from drainfsm_adapters.kubernetes_objects import pod_of
from drainfsm_adapters.kubernetes_options import KubernetesOptions
from drainfsm_kit.kube.levels import NAMES, Level, definition, image, level, missing
from drainfsm_kit.kube.server import RESOURCES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
Item = dict[str, Any]
VERSION = "1.37"
USAGE = 2
STREAM: Item = {
    "nats": "nats://nats.infra:4222",
    "natsCreds": "llm-nats",
    "stream": {"init": True, "creds": "nats-admin", "replicas": 3},
}
VALUES: dict[str, Item] = {
    "as it is": {},
    "several nodes": {"nodes": 4, "queue": "gpu", "cloud": "aws", "env": {"OMP_NUM_THREADS": "1"}},
    "no ClusterRole": {"watchNodes": False, "networkPolicy": False, "claim": ""},
    "log": STREAM,
    "log by TLS": STREAM | {"natsCa": "nats-ca"},
    "log by TLS, to anybody": {
        "nats": "tls://nats.infra:4222",
        "natsCa": "nats-ca",
        "stream": {"init": True},
    },
    "metrics": {"metrics": {"enabled": True, "labels": {"release": "prometheus"}}},
}
ALPHA: Item = {"evictionRequests": True}
"""What an API server without alpha features does not take."""

FOREIGN = (
    "jobset.x-k8s.io",
    "kueue.x-k8s.io",
    "trainer.kubeflow.org",
    "monitoring.coreos.com",
)
"""Groups of which no package has the schemas."""


def manifests() -> Iterator[tuple[str, Item]]:
    for path in sorted(FOLDER.glob("*.yaml")):
        for item in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path.name, item


def rendered(values: Item) -> list[Item]:
    with helm_python.Chart.load(str(FOLDER / "chart")) as chart:
        texts = chart.render(values, name="llm", namespace="default").values()
    return [item for text in texts for item in yaml.safe_load_all(text) if item]


def jobs_of(item: Item) -> Iterator[Item]:
    """Every Job that a manifest makes, itself or by another controller."""
    match item["kind"]:
        case "Job" if "helm.sh/hook" not in item["metadata"].get("annotations", {}):
            yield item
        case "JobSet" | "TrainingRuntime":
            spec = item["spec"] if item["kind"] == "JobSet" else item["spec"]["template"]["spec"]
            for replicated in spec["replicatedJobs"]:
                job = {"apiVersion": "batch/v1", "kind": "Job", **replicated["template"]}
                yield {**job, "metadata": {**job.get("metadata", {}), "name": "job"}}


def every() -> list[tuple[str, Item]]:
    charts = [(name, item) for name, values in VALUES.items() for item in rendered(values)]
    return [*manifests(), *charts]


JOBS = [(name, job) for name, item in every() for job in jobs_of(item)]
CORE = [(name, item) for name, item in every() if "." not in item["apiVersion"].split("/")[0]]
IDS = [f"{name}-{number}" for number, (name, _) in enumerate(JOBS)]


def test_there_are_manifests() -> None:
    kinds = {item["kind"] for _, item in manifests()}
    assert kinds >= {"Job", "Service", "JobSet", "TrainJob", "TrainingRuntime", "LocalQueue"}
    assert len(JOBS) == 11


def test_what_kubernetes_itself_defines_is_valid() -> None:
    checked = 0
    alpha = [("alpha", item) for item in rendered(ALPHA)]
    for name, item in [*every(), *JOBS, *alpha]:
        try:
            kubernetes_validate.validate(item, VERSION, strict=True)
            checked += 1
        except kubernetes_validate.SchemaNotFoundError:
            assert item["apiVersion"].split("/")[0] in FOREIGN, name
    assert checked > 30


def test_the_schemas_find_a_mistake() -> None:
    _, job = JOBS[0]
    broken = json.loads(json.dumps(job))
    broken["spec"]["podFailurePolcy"] = broken["spec"].pop("podFailurePolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


def test_the_chart_has_no_faults() -> None:
    found = helm_python.lint(str(FOLDER / "chart"))
    assert [m for m in found["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize(("name", "job"), JOBS, ids=IDS)
def test_exit_codes_are_what_the_job_makes_of_them(name: str, job: Item) -> None:
    """In this order: an exit that another start cannot help wins over the disruption."""
    container = job["spec"]["template"]["spec"]["containers"][0]["name"]
    fail, again, disrupted = job["spec"]["podFailurePolicy"]["rules"]
    assert fail["action"] == "FailJob"
    codes = sorted((USAGE, FENCED_EXIT_CODE, NO_PROGRESS_EXIT_CODE))
    assert fail["onExitCodes"] == {"containerName": container, "operator": "In", "values": codes}
    assert again["action"] == disrupted["action"] == "Ignore"
    assert again["onExitCodes"]["values"] == [EX_TEMPFAIL]
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(("name", "job"), JOBS, ids=IDS)
def test_the_variables_are_settings_that_work(name: str, job: Item, tmp_path: Path) -> None:
    spec = job["spec"]["template"]["spec"]
    given = {one["name"]: one.get("value", "0") for one in spec["containers"][0]["env"]}
    settings: Settings = load_settings({}, environment=given, directory=tmp_path)
    config = settings.run_config(tuple(spec["containers"][0]["args"]))
    assert config.source[0] == "kubernetes"
    assert config.grace_s == spec["terminationGracePeriodSeconds"]
    nodes = job["spec"].get("completions", 2 if "TrainingRuntime" in name else config.nnodes)
    assert config.nnodes in (nodes, 2)


def one(items: list[Item], kind: str, name: str = "") -> Item:
    (found,) = [x for x in items if x["kind"] == kind and name in ("", x["metadata"]["name"])]
    return found


def test_the_stream_is_made_before_the_job_starts_and_each_shows_its_own_credentials() -> None:
    items = rendered(STREAM)
    hook, job = one(items, "Job", "llm-stream"), one(items, "Job", "llm")
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    spec, ours = hook["spec"]["template"]["spec"], job["spec"]["template"]["spec"]
    container = spec["containers"][0]
    assert container["command"][:2] == ["drainfsm", "stream"]
    given = stream.parser().parse(container["command"][2:])
    assert (given.what, given.nats, given.replicas) == ("init", STREAM["nats"], 3)
    secret = {v["name"]: v.get("secret") for v in spec["volumes"]}["nats"]
    assert secret == {"secretName": "nats-admin"}
    assert given.nats_creds.startswith(container["volumeMounts"][0]["mountPath"] + "/")
    assert {v["name"]: v.get("secret") for v in ours["volumes"]}["nats"] == {
        "secretName": "llm-nats"
    }
    env = {x["name"]: x.get("value") for x in ours["containers"][0]["env"]}
    assert env["DRAINFSM_NATS_CREDS"] == "/nats/agent.creds"
    without = rendered({"stream": {"init": True}, "nats": "nats://nats:4222"})
    assert "volumes" not in one(without, "Job", "llm-stream")["spec"]["template"]["spec"]


@pytest.mark.parametrize("creds", [True, False])
def test_agents_and_the_hook_check_the_server_by_the_same_authority(creds: bool) -> None:
    items = rendered(VALUES["log by TLS" if creds else "log by TLS, to anybody"])
    job, hook = (one(items, "Job", f"llm{x}")["spec"]["template"]["spec"] for x in ("", "-stream"))
    env = {x["name"]: x.get("value") for x in job["containers"][0]["env"]}
    given = stream.parser().parse(hook["containers"][0]["command"][2:])
    for spec, file in ((job, env["DRAINFSM_NATS_TLSCA"]), (hook, given.nats_tlsca)):
        folder, _, name = file.rpartition("/")
        mounted = {x["mountPath"]: x["name"] for x in spec["containers"][0]["volumeMounts"]}
        volumes = {x["name"]: x.get("configMap") for x in spec["volumes"]}
        assert volumes[mounted[folder]] == {"name": "nats-ca"}
        assert name == "ca.crt"
        assert ("/nats" in mounted) == creds
    plain = rendered(STREAM)
    assert not any("nats-ca" in str(item) for item in plain)


@pytest.mark.parametrize("nodes", [1, 4])
def test_prometheus_finds_the_agent_that_answers(nodes: int) -> None:
    """The coordinator's: of several pods the one with index 0, and through the network policy."""
    items = rendered({"nodes": nodes, "metrics": {"enabled": True, "port": 9_000}})
    service, monitor = one(items, "Service", "llm-metrics"), one(items, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    services = [x for x in items if x["kind"] == "Service"]
    found = [x for x in services if wanted.items() <= x["metadata"]["labels"].items()]
    assert found == [service]
    assert monitor["spec"]["endpoints"] == [{"port": service["spec"]["ports"][0]["name"]}]
    selector = dict(service["spec"]["selector"])
    index = selector.pop("batch.kubernetes.io/job-completion-index", None)
    assert index == (None if nodes == 1 else "0")
    template = one(items, "Job")["spec"]["template"]
    assert selector.items() <= template["metadata"]["labels"].items()
    env = {x["name"]: x.get("value") for x in template["spec"]["containers"][0]["env"]}
    assert env["DRAINFSM_METRICS"] == "0.0.0.0:9000"
    ports = [rule.get("ports") for rule in one(items, "NetworkPolicy")["spec"]["ingress"]]
    assert [{"port": 9_000}] in ports


def test_the_pods_name_the_responder_whose_evictions_they_may_answer() -> None:
    items = rendered(ALPHA)
    spec = one(items, "Job")["spec"]["template"]["spec"]
    assert pod_of({"spec": spec}).responder == "drainfsm.io/llm"
    rules = one(items, "Role")["rules"]
    ours = {
        tuple(r["resources"]): r["verbs"] for r in rules if "lifecycle.k8s.io" in r["apiGroups"]
    }
    assert ours == {("evictions",): ["list", "watch"], ("evictions/status",): ["patch"]}


def test_the_image_is_made_of_what_there_is() -> None:
    """Its extras are ours, and what the package is built from reaches the builder."""
    built = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = set(built.split("/src[")[1].split("]")[0].split(","))
    assert extras <= set(project["project"]["optional-dependencies"])
    assert extras >= {"kubernetes", "torch", "metrics", "nkeys"}
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {"pyproject.toml", project["project"]["readme"], *packages}
    assert {name.split("/")[0] for name in needed} <= sent
    assert all((ROOT / name).exists() for name in sent)


def test_the_hook_of_the_page_hands_in_a_notice() -> None:
    (block,) = [b for b in PAGE.split("```yaml\n") if b.startswith("lifecycle:")]
    command = yaml.safe_load(block.split("```")[0])["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["drainfsm", "notify"]
    assert notify.parser().parse(command[2:]).cause == "pod_deleted"


def test_the_page_shows_every_option_and_manifest() -> None:
    shown = {"pod", "namespace", "uid", "node", "kubeconfig"}
    for option in set(KubernetesOptions.__struct_fields__) - shown:
        assert f"\n{option} = " in PAGE, option
    for path in FOLDER.iterdir():
        assert f"`{path.name}`" in PAGE, path.name


# --- kubectl ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_kubectl_takes_every_manifest(name: str, tmp_path: Path) -> None:
    """Reads it, and finds its kind; what is in it is checked by schemas and by the API server."""
    if why := missing(name):
        pytest.skip(why)
    with level(name, tmp_path) as here:
        for api, kinds in RESOURCES.items():
            if api.split("/")[0] in FOREIGN:
                for plural, (kind, namespaced) in kinds.items():
                    scope = "Namespaced" if namespaced else "Cluster"
                    here.define(definition(api, kind, plural, scope=scope))
        items = {"apiVersion": "v1", "kind": "List", "items": [item for _, item in every()]}
        args = ("create", "--dry-run=client", "-o", "name", "--validate=false")
        told = here.kubectl_now(*args, "-f", "-", given=items).split()
        assert len(told) == len(every())
        for path in sorted(FOLDER.glob("*.yaml")):
            assert here.kubectl_now(*args, "-f", str(path)), path.name
        broken = json.loads(json.dumps(every()[0][1])) | {"kind": "Jop"}
        with pytest.raises(RuntimeError, match="Jop"):
            here.kubectl_now(*args, "-f", "-", given=broken)


# --- an API server ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["control-plane", "cluster"])
def here(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Level]:
    name = request.param
    if why := missing(name):
        pytest.skip(why)
    with level(name, tmp_path_factory.mktemp(name)) as made:
        yield made


PATHS = {
    "Service": "api/v1/namespaces/{}/services",
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "Job": "apis/batch/v1/namespaces/{}/jobs",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
}


def dry_run(here: Level, path: str, item: Item) -> str:
    """Under a name that nobody has taken."""
    query = "dryRun=All&fieldValidation=Strict"
    name = f"{item['metadata']['name']}-{uuid.uuid4().hex[:8]}"
    item = {**item, "metadata": {**item["metadata"], "name": name}}
    return here.kubectl_now("create", "--raw", f"/{path}?{query}", "-f", "-", given=item)


def test_an_api_server_takes_them(here: Level) -> None:
    taken = 0
    for _, item in [*every(), *JOBS]:
        if item["kind"] in PATHS:
            dry_run(here, PATHS[item["kind"]].format("default"), item)
            taken += 1
    assert taken > 30


def test_an_api_server_finds_a_mistake(here: Level) -> None:
    _, job = JOBS[0]
    broken = json.loads(json.dumps(job))
    broken["spec"]["podReplacementPolicy"] = "TerminatingOrFailed"
    with pytest.raises(RuntimeError, match="podReplacementPolicy"):
        dry_run(here, PATHS["Job"].format("default"), broken)


@pytest.mark.parametrize(("name", "job"), JOBS, ids=IDS)
def test_restricted_pod_security_takes_the_pods(here: Level, name: str, job: Item) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace"}
    made = {**namespace, "metadata": {"name": "restricted", "labels": labels}}
    if "restricted" not in here.kubectl_now("get", "namespaces", "-o", "name"):
        here.kubectl_now("create", "--validate=false", "-f", "-", given=made)
    spec = {**job["spec"]["template"]["spec"]}
    spec.pop("serviceAccountName")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    dry_run(here, "api/v1/namespaces/restricted/pods", pod)
    spec["hostNetwork"] = True
    with pytest.raises(RuntimeError, match="violates PodSecurity"):
        dry_run(here, "api/v1/namespaces/restricted/pods", pod)


@pytest.mark.parametrize("code", [EX_TEMPFAIL, NO_PROGRESS_EXIT_CODE])
def test_a_cluster_does_what_the_rules_say(here: Level, code: int) -> None:
    if not here.runs_pods:
        pytest.skip("nothing runs pods here")
    name = f"exit-{uuid.uuid4().hex[:8]}"
    container = {
        "name": "train",
        "image": image(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", f"exit {code}"],
    }
    job: Item = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    policy = next(one for file, one in JOBS if file == "job.yaml")["spec"]["podFailurePolicy"]
    job["spec"] = {"backoffLimit": 0, "podFailurePolicy": policy, "template": template}
    here.kubectl_now("create", "--validate=false", "-f", "-", given=job)
    try:
        if code == EX_TEMPFAIL:
            pods = ("get", "pods", "-l", f"batch.kubernetes.io/job-name={name}", "-o", "name")
            gives_up = time.monotonic() + 120
            while len(here.kubectl_now(*pods).split()) < 2:
                assert time.monotonic() < gives_up, "it was not started again"
                time.sleep(0.5)
            status = json.loads(here.kubectl_now("get", "job", name, "-o", "json"))["status"]
            assert status.get("failed", 0) == 0, "Ignore counts nothing"
        else:
            here.kubectl_now("wait", f"job/{name}", "--for=condition=Failed", "--timeout=120s")
            status = json.loads(here.kubectl_now("get", "job", name, "-o", "json"))["status"]
            assert {one["reason"] for one in status["conditions"]} == {"PodFailurePolicy"}
    finally:
        here.kubectl_now("delete", "job", name, "--wait=false")
