"""What ranks of one machine want alike is read from an object store once there."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainfsm.core.state import periodic_id
from drainfsm.store import open_store
from drainfsm_kit.ranks import commit_saved
from drainfsm_kit.s3 import BUCKET, Fault, FaultProxy, environment, s3_server

SCRIPT = Path(__file__).parent / "sharing_rank.py"
URL = f"s3://{BUCKET}/shared"
RANKS, MACHINES, TIMES = 3, 2, 2
GENERATION = periodic_id(epoch=1, step=0, restart=0)
JOB_S_MAX = 200


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with s3_server() as port:
        proxy = FaultProxy(port)
        with environment(proxy.port):
            yield proxy
        proxy.close()


def run(directory: Path, *more: str) -> list[str]:
    """What each rank found."""
    given = [str(directory), str(directory / f"rendezvous-{uuid.uuid4().hex}"), URL, *more]
    ranks = [
        subprocess.Popen([sys.executable, "-W", "ignore", SCRIPT, str(rank), str(RANKS), *given])
        for rank in range(RANKS)
    ]
    try:
        assert [rank.wait(JOB_S_MAX) for rank in ranks] == [0] * RANKS
    finally:
        for rank in ranks:
            rank.kill()
    return [(directory / f"found{rank}").read_text() for rank in range(RANKS)]


@pytest.fixture(scope="module")
def saved(proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Directory, digest of the manifest, and of what was saved."""
    directory = tmp_path_factory.mktemp("shared")
    for machine in range(MACHINES):
        (directory / f"boot{machine}").write_text(f"machine {machine}\n")
    [digest] = set(run(directory))
    store = open_store(URL)
    target = commit_saved(store, directory, generation=GENERATION, step=0, world_size=RANKS)
    return directory, target.manifest_digest, digest


def test_each_machine_reads_what_its_ranks_share_once(
    proxy: FaultProxy, saved: tuple[Path, str, str]
) -> None:
    """But for a tensor whose rows do not follow each other, and small ones."""
    directory, manifest, digest = saved
    files = open_store(URL).list(f"generations/{GENERATION}/")
    proxy.answered_bytes = 0
    assert run(directory, manifest, "checksums") == ["\n".join([digest] * TIMES)] * RANKS
    assert proxy.answered_bytes <= 1.2 * TIMES * MACHINES * sum(files.values())


def test_ranks_that_do_not_know_their_machine_read_all_themselves(
    proxy: FaultProxy, saved: tuple[Path, str, str], tmp_path: Path
) -> None:
    """Not every sandbox has the file that names it."""
    _, manifest, digest = saved
    assert run(tmp_path, manifest, "sizes") == ["\n".join([digest] * TIMES)] * RANKS


def test_one_rank_that_cannot_read_fails_all(
    proxy: FaultProxy, saved: tuple[Path, str, str]
) -> None:
    directory, manifest, _ = saved
    fault = Fault("GET", r"__1_0_0\.distcp", count=1_000, status=404)
    proxy.faults.append(fault)
    try:
        found = run(directory, manifest, "checksums")
    finally:
        proxy.faults.clear()
    assert fault.seen
    assert len(set(found)) == 1
    assert "__1_0_0.distcp is missing" in found[0]
