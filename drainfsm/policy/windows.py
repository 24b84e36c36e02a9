"""The time that platforms leave between a notice and the end, and the settings that change it."""

from __future__ import annotations

import msgspec


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What one platform gives."""

    platform: str
    window_ms: int
    """From the notice to the first instant at which processes may be killed."""

    fixed: bool
    """No setting makes it longer."""

    note: str = ""


WINDOWS: tuple[Window, ...] = (
    Window(
        platform="Kubernetes, default grace",
        window_ms=30_000,
        fixed=False,
        note="terminationGracePeriodSeconds",
    ),
    Window(
        platform="GKE Spot",
        window_ms=15_000,
        fixed=True,
        note="15 of the 30 s are for critical pods; a longer grace has no effect",
    ),
    Window(
        platform="GCP Spot VM",
        window_ms=30_000,
        fixed=False,
        note="150 s with preemptionNoticeDuration 120 s",
    ),
    Window(platform="AWS Spot", window_ms=120_000, fixed=True, note="hibernation: none at all"),
    Window(platform="Azure Spot", window_ms=30_000, fixed=True, note="at most; best effort"),
    Window(platform="Alibaba Spot", window_ms=300_000, fixed=True),
    Window(platform="Tencent Spot", window_ms=120_000, fixed=True),
    Window(platform="OCI preemptible", window_ms=120_000, fixed=True),
    Window(platform="Nebius", window_ms=60_000, fixed=True),
    Window(
        platform="Slurm, KillWait default",
        window_ms=30_000,
        fixed=False,
        note="--signal=B:USR1@N, GraceTime for preemption",
    ),
    Window(platform="docker stop", window_ms=10_000, fixed=False, note="--stop-timeout"),
)
"""Sources: the providers' documentation of Spot and preemptible machines; Kubernetes' page on pod
lifecycle and GKE's on Spot VMs; slurm.conf(5) for KillWait; Docker's for stop."""

KUBELET_CRITICAL_S = 10
"""Time left for critical pods, which end after ours, in a graceful node shutdown."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a user's configuration."""

    where: str
    text: str
    why: str


def settings(*, grace_s: int, exit_margin_ms: int) -> tuple[Setting, ...]:
    """What to set so that a notice leaves ``grace_s``."""
    shutdown_s = grace_s + KUBELET_CRITICAL_S
    rows = (
        (
            "Kubernetes, pod",
            f"terminationGracePeriodSeconds: {grace_s}",
            "a preStop hook runs inside it: add the hook's time",
        ),
        (
            "Kubernetes, kubelet",
            (
                f"shutdownGracePeriod: {shutdown_s}s, "
                f"shutdownGracePeriodCriticalPods: {KUBELET_CRITICAL_S}s"
            ),
            (
                "0 by default: a node that shuts down gives its pods nothing; logind's "
                f"InhibitDelayMaxSec must be {shutdown_s} or more"
            ),
        ),
        ("Slurm, job", f"#SBATCH --signal=B:USR1@{grace_s}", "the time limit's warning"),
        ("Slurm, partition or QOS", f"GraceTime={grace_s}", "0 by default: only KillWait"),
        (
            "Slurm, slurm.conf",
            f"KillWait={grace_s}",
            "only if jobs are ended without a warning (scancel)",
        ),
        (
            "drainfsm run",
            f"--grace {grace_s} --exit-margin-ms {exit_margin_ms}",
            "the deadline of a signal that states none; not more than the platform gives",
        ),
        (
            "torchrun",
            "nothing under `drainfsm run`",
            "on its own it kills its workers 30 s after a signal, whatever the platform gives",
        ),
    )
    return tuple(Setting(where=where, text=text, why=why) for where, text, why in rows)
