"""What a requeue record says, and where each field comes from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drainfsm.core.budget import Sample
from drainfsm.core.chain import LogHead
from drainfsm.core.events import CheckpointRestored
from drainfsm.core.notice import Cause
from drainfsm.core.orders import CapacitySettings, CheckpointSettings
from drainfsm.core.requeue import Capacity, Digests, RequeueRecord
from drainfsm.core.state import Attempt, Committed
from drainfsm.core.words import Verification
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator import requeue
from drainfsm.runtime.coordinator.devices import accelerators
from drainfsm.runtime.coordinator.requeue import requeue_record

OPERATE = Path(__file__).parents[2] / "docs" / "operate.md"
OLD = Committed(generation_id="old", manifest_digest="sha256:old", step=7)
NEW = Committed(generation_id="new", manifest_digest="sha256:new", step=9)
BEFORE = RequeueRecord(
    job_id="job",
    epoch=1,
    cause=Cause.PREEMPTION,
    generation_id="old",
    manifest_digest="sha256:old",
    step=7,
    world_size=4,
    layout={"dp": 4},
    capacity=Capacity(
        node_count=9,
        accelerator_count=72,
        topology="rack",
        store_bytes_per_s=5,
        restore_ms=6,
    ),
    recorded_unix_ms=1,
)
SAMPLE = Sample(world_size=2, save_bytes=3_000, store="s", durable_ms=1_500, commit_ms=1)


@pytest.fixture(autouse=True)
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "accelerators", lambda: 0)


def config(**options: Any) -> RunConfig:
    return RunConfig(job="job", store="/s", command=("train", "x"), state_dir=Path("/t"), **options)


def recorded(attempt: Attempt, **options: Any) -> RequeueRecord:
    given: dict[str, Any] = {"config": config(), "before": None, "restored": None} | options
    return requeue_record(attempt, cause=Cause.LOST, now_unix_ms=5, **given)


def running(**fields: Any) -> Attempt:
    return Attempt(job_id="job", epoch=2, **fields)


def restored(generation: str = "old", **options: Any) -> CheckpointRestored:
    return CheckpointRestored(
        generation_id=generation,
        manifest_digest="",
        step=7,
        restore_ms=80,
        verification=Verification.SIZES,
        **options,
    )


def test_every_field_is_filled_from_configuration_or_measurement() -> None:
    digests = Digests(container="sha256:c", dataset="v3", config="sha256:f")
    given = config(
        nnodes=1,
        checkpoint=CheckpointSettings(layout={"dp": 2}, digests=digests),
        capacity=CapacitySettings(accelerators=16, topology="nvl72"),
    )
    attempt = running(world_size=2, node_count=1, committed=NEW, samples=(SAMPLE,))
    assert recorded(attempt, config=given, restored=restored()) == RequeueRecord(
        job_id="job",
        epoch=2,
        cause=Cause.LOST,
        generation_id="new",
        manifest_digest="sha256:new",
        step=9,
        world_size=2,
        layout={"dp": 2},
        digests=digests,
        capacity=Capacity(
            node_count=1,
            accelerator_count=16,
            topology="nvl72",
            store_bytes_per_s=2_000,
            restore_ms=80,
        ),
        recorded_unix_ms=5,
    )


def test_what_was_not_measured_keeps_what_the_record_before_says() -> None:
    record = recorded(running(committed=OLD), before=BEFORE)
    assert record.capacity == msgspec.structs.replace(BEFORE.capacity, node_count=1)
    assert record.digests.config.startswith("command-sha256:")


def test_devices_are_counted_where_nobody_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "accelerators", lambda: 8)
    two = config(nnodes=2, coordinator="host:1")
    assert recorded(running(), config=two).capacity.accelerator_count == 16


@pytest.mark.parametrize(
    ("attempt", "before", "loaded", "shape"),
    [
        (running(world_size=2, committed=NEW), BEFORE, restored(), (2, {"dp": 2})),
        (running(world_size=2, committed=OLD), BEFORE, None, (4, {"dp": 4})),
        (
            running(world_size=2, committed=OLD),
            msgspec.structs.replace(BEFORE, generation_id="damaged", world_size=8),
            restored(saved_world_size=6, saved_layout={"dp": 6}),
            (6, {"dp": 6}),
        ),
        (running(world_size=2), None, None, (2, {"dp": 2})),
    ],
    ids=["committed here", "as it came", "fell back", "fresh"],
)
def test_world_size_and_layout_are_those_of_the_generation(
    attempt: Attempt,
    before: RequeueRecord | None,
    loaded: CheckpointRestored | None,
    shape: tuple[int, dict[str, int]],
) -> None:
    given = config(checkpoint=CheckpointSettings(layout={"dp": 2}))
    record = recorded(attempt, config=given, before=before, restored=loaded)
    assert (record.world_size, record.layout) == shape


@pytest.mark.parametrize(
    ("files", "count"),
    [
        (["dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm"], 2),
        (["dev/accel/accel0", "dev/accel/accel1"], 2),
        (["dev/neuron0", "dev/null"], 1),
        (["dev/null"], 0),
    ],
)
def test_accelerators_are_counted(tmp_path: Path, files: list[str], count: int) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert accelerators(tmp_path) == count


def test_amds_nodes_are_counted_without_the_processors(tmp_path: Path) -> None:
    for number, simds in enumerate((0, 416, 416)):
        node = tmp_path / "sys/class/kfd/kfd/topology/nodes" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 8\nsimd_count {simds}\n")
    assert accelerators(tmp_path) == 2


def test_the_page_lists_every_field_and_no_other() -> None:
    section = OPERATE.read_text().split("## The requeue record")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `([\w.]+)`", section, re.MULTILINE)
    parts: dict[str, type[msgspec.Struct]] = {
        "digests": Digests,
        "capacity": Capacity,
        "log": LogHead,
    }
    wanted = []
    for field in msgspec.structs.fields(RequeueRecord):
        part = parts.get(field.name)
        names = [f.name for f in msgspec.structs.fields(part)] if part else []
        wanted += [f"{field.name}.{name}" for name in names] or [field.name]
    assert listed == wanted
