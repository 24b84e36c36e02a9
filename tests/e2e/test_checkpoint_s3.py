"""The same checkpoint on an object store: a real S3 API over HTTP."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from drainfsm.checkpoint import Checkpoint
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.state import generation_id
from drainfsm.core.words import Checksum, Verification
from drainfsm.errors import ManifestMismatchError
from drainfsm.store import open_store
from drainfsm_kit.ranks import RecordedPort, commit_saved
from drainfsm_kit.s3 import (
    BUCKET,
    Fault,
    FaultProxy,
    environment,
    has_file_server,
    s3_file_server,
    s3_server,
)

LAYERS = 3
WIDTH = 1_500
RANGE_BYTES = 4 << 20
GENERATION = generation_id(epoch=1, step=0, saver="p")


@pytest.fixture(scope="module", params=["moto", "localbucket"])
def proxy(request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    if request.param == "localbucket" and not has_file_server():
        pytest.skip("localbucket, a second S3 server, is not installed")
    serve = s3_server if request.param == "moto" else s3_file_server
    with serve() as port:
        proxy = FaultProxy(port)
        with environment(proxy.port):
            yield proxy
        proxy.close()


def job(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def save(
    tmp_path: Path, url: str, model: nn.Module, *, checksum: Checksum = Checksum.XXH3_128
) -> RecordedPort:
    settings = CheckpointSettings(every_steps=1, checksum=checksum)
    port = RecordedPort(tmp_path, store_url=url, settings=settings)
    checkpoint = Checkpoint(port, model=model)
    checkpoint.step_done(0)
    checkpoint.close()
    return port


@pytest.mark.parametrize("checksum", [Checksum.XXH3_128, Checksum.SHA256_TREE])
def test_a_checkpoint_on_s3_is_restored_bit_for_bit_and_verified(
    proxy: FaultProxy, tmp_path: Path, checksum: Checksum
) -> None:
    url = f"s3://{BUCKET}/whole-{checksum}"
    saved = job(1)
    save(tmp_path, url, saved, checksum=checksum)
    parts = [path for method, path in proxy.requests if method == "PUT" and "partNumber" in path]
    assert len(parts) >= 2, "large files go up in parts"
    store = open_store(url)
    target = commit_saved(store, tmp_path, generation=GENERATION, step=0, world_size=1)
    again = job(2)
    settings = CheckpointSettings(verify=Verification.CHECKSUMS)
    port = RecordedPort(tmp_path, store_url=url, settings=settings, restore_target=target)
    assert Checkpoint(port, model=again).restore() == 1
    for name, value in saved.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    name = f"generations/{GENERATION}/__0_0_0.distcp"
    data = bytearray(store.get(name) or b"")
    data[len(data) // 2] ^= 1
    store.put(name, bytes(data))
    with pytest.raises(ManifestMismatchError, match=rf"__0_0_0\.distcp has checksum {checksum}:"):
        Checkpoint(port, model=again).restore()


@pytest.mark.parametrize("verify", [Verification.SIZES, Verification.CHECKSUMS])
def test_a_restore_asks_for_nothing_twice(
    proxy: FaultProxy, tmp_path: Path, verify: Verification
) -> None:
    """Sizes are those of the manifest, which one listing has confirmed."""
    url = f"s3://{BUCKET}/asked-{verify}"
    save(tmp_path, url, job(1))
    store = open_store(url)
    target = commit_saved(store, tmp_path, generation=GENERATION, step=0, world_size=1)
    settings = CheckpointSettings(verify=verify)
    port = RecordedPort(tmp_path, store_url=url, settings=settings, restore_target=target)
    checkpoint = Checkpoint(port, model=job(2))
    files = store.list(f"generations/{GENERATION}/")
    proxy.requests.clear()
    assert checkpoint.restore() == 1
    assert {method for method, _ in proxy.requests} == {"GET"}
    asked = Counter(path.partition("?")[0].rpartition("/")[2] for _, path in proxy.requests)
    ranges = {name: math.ceil(size / RANGE_BYTES) for name, size in files.items()}
    assert asked == {"bucket": 1} | ranges


def test_a_part_that_the_store_refuses_fails_the_save(proxy: FaultProxy, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/refused"
    proxy.faults.append(Fault("PUT", "refused.*partNumber", count=1_000, status=400))
    port = save(tmp_path, url, job(1))
    assert port.of("durable") == []
    [failed] = port.of("failed")
    assert f"cannot write generations/{GENERATION}/__0_" in failed.reason
    assert not any(".metadata" in name for name in open_store(url).list(""))
