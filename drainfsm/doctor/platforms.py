"""The platform: metadata services, Slurm, Kubernetes, each as its adapter would meet it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator

import msgspec

from drainfsm.adapter import AdapterContext, load_adapter
from drainfsm.core.text import span
from drainfsm.doctor.findings import Finding, Setup, error, note, right, warning
from drainfsm.errors import ConfigError
from drainfsm_adapters.auto import PROBES, Asking, detect
from drainfsm_adapters.imds_token import TokenSession
from drainfsm_adapters.metadata import MetadataClient, NoAnswerError, endpoint_of
from drainfsm_adapters.slurm_commands import Scontrol, SlurmFailedError
from drainfsm_adapters.slurm_evidence import killed_by_unix_ms
from drainfsm_adapters.slurm_options import run_of, slurm_options
from drainfsm_adapters.slurm_records import SlurmLimits

TIMEOUT_S = 4.0
HOPS = "HttpPutResponseHopLimit"

MEND = {
    "aws": "aws ec2 modify-instance-metadata-options --http-tokens required "
    "--http-put-response-hop-limit 2 --http-endpoint enabled --instance-id …",
    "gcp": "curl -H Metadata-Flavor:Google http://metadata.google.internal/computeMetadata/v1/",
    "azure": "curl -H Metadata:true --noproxy '*' 'http://169.254.169.254/metadata/instance"
    "?api-version=2021-02-01'",
    "alibaba": "curl http://100.100.100.200/latest/meta-data/",
    "tencent": "curl http://metadata.tencentyun.com/latest/meta-data/",
}
"""By cloud: the command that shows, or fixes, that its service gives no answer."""


async def check_sources(setup: Setup, now_unix_ms: Callable[[], int]) -> list[Finding]:
    """As the only work of its event loop: calls that are late are given up at the end."""
    try:
        return await _check_each(setup, now_unix_ms)
    finally:
        late = asyncio.all_tasks() - {asyncio.current_task()}
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await asyncio.sleep(0)  # for their connections to be closed


async def _check_each(setup: Setup, now_unix_ms: Callable[[], int]) -> list[Finding]:
    found: list[Finding] = []
    for source in setup.sources:
        found += _check_factory(setup, source)
        if source in PROBES:
            found += await _check_metadata(source, now_unix_ms)
    if not setup.sources:
        found += await _check_unheard(now_unix_ms)
    if "slurm" in setup.sources:
        found += await _check_slurm(setup)
    if "kubernetes" in setup.sources:
        found += await _check_rights(setup, now_unix_ms)
    found += await _check_clock(setup, now_unix_ms)
    return found


def _check_factory(setup: Setup, source: str) -> Iterator[Finding]:
    """The adapter takes its options, and finds itself where it belongs."""
    context = AdapterContext(
        job_id=setup.job,
        node_rank=setup.node_rank,
        node_count=setup.node_count,
        grace_ms=setup.grace_ms,
        options=setup.adapters.get(source, {}),
    )
    try:
        load_adapter(source, context)
    except ConfigError as problem:
        yield error(
            f"source {source}",
            str(problem),
            why="the job would not start",
            fix=f"drainfsm run without --source {source}, or what the message names",
        )


async def _check_metadata(source: str, now_unix_ms: Callable[[], int]) -> list[Finding]:
    try:
        await PROBES[source](Asking(now_unix_ms=now_unix_ms, timeout_s=TIMEOUT_S))
    except (NoAnswerError, ConfigError) as problem:
        hops = ": the hop limit" if HOPS in str(problem) else ""
        return [
            error(
                f"source {source}",
                f"the metadata service gives no answer{hops}: {problem}",
                why="the platform's notices would not be heard; only signals would tell",
                fix=MEND[source],
            )
        ]
    return [right(f"source {source}", "its metadata service answers")]


async def _check_unheard(now_unix_ms: Callable[[], int]) -> list[Finding]:
    if os.environ.get("SLURM_JOB_ID"):
        heard = "slurm"
    elif os.environ.get("KUBERNETES_SERVICE_HOST"):
        heard = "kubernetes"
    else:
        heard = (await detect(now_unix_ms)).cloud
    if not heard:
        return [note("source", "no --source, and no platform is recognised: only signals tell")]
    return [
        warning(
            "source",
            f"this machine is of {heard}, and no --source listens to it",
            why="a signal states neither deadline nor cause, and comes late",
            fix=f"drainfsm run --source {heard} …",
        )
    ]


async def _check_clock(setup: Setup, now_unix_ms: Callable[[], int]) -> list[Finding]:
    """By the ``Date`` of a service that knows a token or a plain path."""
    allowed_ms = setup.allowances.clock_skew_ms
    for source in setup.sources:
        if source != "aws":
            continue
        from drainfsm_adapters import aws

        client = MetadataClient(
            endpoint_of(aws.endpoint_text(), option=aws.ENDPOINT_VARIABLE),
            timeout_s=TIMEOUT_S,
            now_unix_ms=now_unix_ms,
        )
        try:
            await TokenSession(client, header=aws.TOKEN_HEADER, required=True).check()
        except NoAnswerError:
            return []
        off_ms = abs(client.clock.offset_ms) - client.clock.uncertainty_ms
        if off_ms > allowed_ms:
            return [
                warning(
                    "clock",
                    f"this machine's clock is {span(off_ms)} or more off the platform's",
                    why=f"the allowance is {allowed_ms} ms: deadlines would be missed by the rest",
                    fix="chronyc makestep; chronyc tracking",
                )
            ]
        return [right("clock", f"within {allowed_ms} ms of the platform's")]
    return []


# --- Slurm --------------------------------------------------------------------------------------


async def _check_slurm(setup: Setup) -> list[Finding]:
    try:
        options = slurm_options(setup.adapters.get("slurm", {}))
        run = run_of(os.environ)
    except ConfigError:
        return []  # reported by the adapter's factory
    orders = Scontrol(options, job_name=run.job_name)
    partition = os.environ.get("SLURM_JOB_PARTITION", "")
    try:
        job = await orders.job(run.job_id, timeout_s=TIMEOUT_S)
        limits = await orders.limits(partition, timeout_s=TIMEOUT_S)
    except SlurmFailedError as problem:
        return [
            error(
                "slurm",
                str(problem),
                why="neither time limits nor preemptions would be heard, nor could it be requeued",
                fix="scontrol ping; in a container, mount Slurm's commands and the munge socket",
            )
        ]
    found = [right("slurm", "scontrol answers")]
    if not job.requeue and not options.resubmit:
        found.append(
            error(
                "slurm requeue",
                "the job must not be requeued",
                why="it would not come back after a drain",
                fix="#SBATCH --requeue, or `resubmit` in [adapters.slurm]",
            )
        )
    found += check_limits(limits, warning_s=options.warning_s, needed_ms=setup.needed_ms)
    return found


def check_limits(limits: SlurmLimits, *, warning_s: float, needed_ms: int) -> Iterator[Finding]:
    """What a preemption, the time limit, and an end that nothing announces leave for a save."""
    if not needed_ms:
        return
    enough_s, unsaved = needed_ms // 1_000 + 1, f", and a save needs {span(needed_ms)}"
    wait_ms = None  # from SIGTERM to SIGKILL; None: not known
    if limits.kill_wait_s is not None:
        wait_ms = killed_by_unix_ms(signalled_unix_ms=0, limits=limits, grace_ms=sys.maxsize)
    if limits.preempt_mode.upper() not in ("", "OFF"):
        preempted_ms = limits.grace_s * 1_000 if limits.grace_s else wait_ms or 0
        if preempted_ms <= needed_ms:
            yield error(
                "slurm window",
                f"GraceTime is {limits.grace_s or 0} s: a preemption leaves {span(preempted_ms)}"
                + unsaved,
                why="the job would be killed before its save is committed",
                fix=f"scontrol update PartitionName=… GraceTime={enough_s}",
            )
    if warning_s * 1_000 <= needed_ms:
        yield error(
            "slurm window",
            f"--signal comes {warning_s:g} s before the time limit{unsaved}",
            why="the job would be killed before its save is committed",
            fix=f"#SBATCH --signal=B:USR1@{enough_s}, and warning_s in [adapters.slurm]",
        )
    if wait_ms is not None and wait_ms <= needed_ms:
        yield warning(
            "slurm KillWait",
            f"KillWait is {limits.kill_wait_s} s: scancel and scontrol requeue leave "
            f"{span(wait_ms)}{unsaved}",
            why="they give no other warning; the job would restart from its last checkpoint",
            fix=f"drainfsm notify --in {enough_s} … before them; for all jobs, KillWait="
            f"{enough_s + 1} in slurm.conf",
        )


# --- Kubernetes ---------------------------------------------------------------------------------

RIGHTS = (
    ("list", "pods"),
    ("watch", "pods"),
    ("patch", "pods"),
    ("list", "events"),
    ("list", "nodes"),
)
NAMESPACED = frozenset({"pods", "events"})
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class _ReviewStatus(msgspec.Struct, frozen=True, kw_only=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True, kw_only=True):
    """Of a SelfSubjectAccessReview, what counts."""

    status: _ReviewStatus


async def _check_rights(setup: Setup, now_unix_ms: Callable[[], int]) -> list[Finding]:
    from drainfsm_adapters.kubernetes_client import Api, NoConnectionError, connection_of

    kubeconfig = setup.adapters.get("kubernetes", {}).get("kubeconfig", "")
    try:
        api = Api(connection_of(kubeconfig), timeout_s=TIMEOUT_S, now_unix_ms=now_unix_ms)
    except (NoConnectionError, ConfigError) as problem:
        return [
            error(
                "kubernetes",
                str(problem),
                why="deletions, taints and cordons would not be heard before the signal",
                fix="kubectl apply -f deploy/kubernetes/rights.yaml, and serviceAccountName",
            )
        ]
    try:
        missing = [f"{verb} {what}" for verb, what in RIGHTS if not await _may(api, verb, what)]
    except NoAnswerError as problem:
        return [
            error(
                "kubernetes",
                f"the API server gives no answer: {problem}",
                why="deletions, taints and cordons would not be heard before the signal",
                fix="kubectl auth can-i list pods; NetworkPolicy to the API server",
            )
        ]
    finally:
        await api.close()
    if not missing:
        return [right("kubernetes", "all rights are there")]
    return [
        warning(
            "kubernetes rights",
            f"not allowed: {', '.join(missing)}",
            why="what cannot be read is not heard",
            fix="kubectl apply -f deploy/kubernetes/rights.yaml",
        )
    ]


async def _may(api: object, verb: str, resource: str) -> bool:
    """Raises: NoAnswerError."""
    from drainfsm_adapters.kubernetes_client import Api

    assert isinstance(api, Api)
    attributes: dict[str, str] = {"verb": verb, "resource": resource}
    if resource in NAMESPACED:
        attributes["namespace"] = os.environ.get("POD_NAMESPACE", "default")
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    reply = await api.request("POST", REVIEW, body=body)
    return reply.json(_Review).status.allowed
