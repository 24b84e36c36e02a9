"""On which platform the job runs, by what can be seen without asking any service."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

VENDOR_FILE = Path("/sys/class/dmi/id/sys_vendor")
VENDORS = {
    "amazon ec2": "aws",
    "google": "gcp",
    "microsoft corporation": "azure",
    "alibaba cloud": "alibaba",
    "tencent cloud": "tencent",
}
_KINDS = re.compile(
    r"^\s*kind:\s*(Job|JobSet|Pod|TrainJob|PyTorchJob|MPIJob|RayJob|LeaderWorkerSet|StatefulSet)\b",
    re.MULTILINE,
)


class PlatformSign(NamedTuple):
    source: str
    """What ``--source`` takes."""

    because: str
    here: bool
    """It is about this machine; else a file says so."""


def platforms(
    texts: Sequence[tuple[str, str]],
    *,
    environment: Mapping[str, str],
    vendor_file: Path = VENDOR_FILE,
) -> tuple[PlatformSign, ...]:
    """What was found, once for each source; this machine counts for more than a file."""
    found: dict[str, PlatformSign] = {}
    for one in (*_here(environment, vendor_file), *_named(texts)):
        found.setdefault(one.source, one)
    return tuple(found.values())


def _here(environment: Mapping[str, str], vendor_file: Path) -> Iterator[PlatformSign]:
    for source, variable in (("slurm", "SLURM_JOB_ID"), ("kubernetes", "KUBERNETES_SERVICE_HOST")):
        if environment.get(variable):
            yield PlatformSign(source, f"{variable} is set", here=True)
    try:
        vendor = vendor_file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return
    if source := VENDORS.get(vendor.lower(), ""):
        yield PlatformSign(source, f"this machine's vendor is {vendor}", here=True)


def _named(texts: Sequence[tuple[str, str]]) -> Iterator[PlatformSign]:
    for name, text in texts:
        if re.search(r"^#SBATCH\b", text, re.MULTILINE):
            yield PlatformSign("slurm", f"{name} is for sbatch", here=False)
        is_manifest = name.endswith((".yaml", ".yml"))
        if is_manifest and (kind := _KINDS.search(text)):
            yield PlatformSign("kubernetes", f"{name} has a {kind[1]}", here=False)
