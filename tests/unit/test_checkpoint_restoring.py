"""What a restore refuses, each with an error that says what is wrong."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch
from torch import nn

from drainfsm.checkpoint import Checkpoint, restoring
from drainfsm.core.manifest import Manifest
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm.core.state import generation_id
from drainfsm.errors import ConfigError, ManifestMismatchError, RestoreRefusedError
from drainfsm.store.generations import read_manifest
from drainfsm.testing.stores import new_store
from drainfsm_kit.ranks import RecordedPort, commit_saved

GENERATION = generation_id(epoch=1, step=4, saver="d1")
LAYOUT = {"dp": 1}


class Position:
    """A data position as simple as can be."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["at"] > 100:
            raise ValueError("beyond the end of the data")
        self.at = state["at"]


def model(width: int = 8, *, dtype: torch.dtype = torch.float32, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(4, width, bias=bias), nn.BatchNorm1d(width), nn.Linear(width, 2)]
    return nn.Sequential(*layers).to(dtype)


def parts(of: nn.Module, *, at: int = 0) -> dict[str, Any]:
    return {"model": of, "optimizer": torch.optim.AdamW(of.parameters()), "loader": Position(at)}


def train_one(given: dict[str, Any]) -> None:
    given["model"](torch.ones(3, 4)).sum().backward()
    given["optimizer"].step()
    given["optimizer"].zero_grad()


def arguments(given: dict[str, Any]) -> dict[str, Any]:
    """What has no argument of its own goes into ``parts``."""
    own = {"model", "optimizer", "scheduler", "loader"}
    named = {name: part for name, part in given.items() if name in own}
    return named | {"parts": {name: part for name, part in given.items() if name not in own}}


class Saved:
    """A committed generation of one rank."""

    def __init__(self, tmp_path: Path, given: dict[str, Any]) -> None:
        self.path = tmp_path
        self.store = new_store(tmp_path / "store")
        port = self.port(drain_at=4)
        Checkpoint(port, **arguments(given)).step_done(4)
        assert port.of("failed") == []
        self.target = commit_saved(
            self.store, tmp_path, generation=GENERATION, step=4, world_size=1, layout=LAYOUT
        )
        self.manifest = read_manifest(
            self.store, generation_id=GENERATION, digest=self.target.manifest_digest
        )

    def port(self, **options: Any) -> RecordedPort:
        settings = CheckpointSettings(**{"layout": LAYOUT} | options.pop("settings", {}))
        store_url = str(self.path / "store")
        return RecordedPort(self.path, store_url=store_url, settings=settings, **options)

    def restore(
        self, given: dict[str, Any], *, target: RestoreTarget | None = None, **settings: Any
    ) -> int:
        port = self.port(restore_target=target or self.target, settings=settings)
        first = Checkpoint(port, **arguments(given)).restore()
        assert len(port.of("restored")) == 1
        return first

    def file(self, name: str) -> Path:
        return self.path / "store" / "generations" / GENERATION / name

    def forge(self, **changes: Any) -> RestoreTarget:
        """Commits the same files again with a manifest that says something else."""
        data = msgspec.json.encode(msgspec.structs.replace(self.manifest, **changes))
        self.file("manifest.json").write_bytes(data)
        return msgspec.structs.replace(self.target, manifest_digest=digest_of(data))


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    given = parts(model(), at=17)
    train_one(given)
    return Saved(tmp_path, given)


def test_the_same_job_is_restored(saved: Saved) -> None:
    given = parts(model())
    assert saved.restore(given) == 5
    assert given["loader"].at == 17
    assert saved.restore(given, verify="checksums") == 5


@pytest.mark.parametrize("verify", ["sizes", "checksums"])
def test_a_missing_truncated_or_extra_file_is_refused(saved: Saved, verify: str) -> None:
    given = parts(model())
    extra = saved.file("__1_0_0.distcp")
    extra.write_bytes(b"x")
    with pytest.raises(ManifestMismatchError, match=r"unexpected file\(s\) __1_0_0\.distcp"):
        saved.restore(given, verify=verify)
    extra.unlink()
    data = saved.file("__0_0_0.distcp").read_bytes()
    saved.file("__0_0_0.distcp").write_bytes(data[:-1])
    with pytest.raises(ManifestMismatchError, match=rf"has {len(data) - 1} bytes, not {len(data)}"):
        saved.restore(given, verify=verify)
    saved.file("__0_0_0.distcp").unlink()
    with pytest.raises(ManifestMismatchError, match=r"__0_0_0\.distcp is missing"):
        saved.restore(given, verify=verify)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_a_flipped_bit_is_found_by_checksums(saved: Saved) -> None:
    flip_a_bit(saved.file("__0_1_0.distcp"))
    with pytest.raises(ManifestMismatchError, match=r"rank 0: file __0_1_0\.distcp has checksum"):
        saved.restore(parts(model()), verify="checksums")


def test_nothing_is_unpickled_before_the_checksums_hold(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of a changed file may be anything."""
    asked: list[str] = []
    monkeypatch.setattr(restoring, "unpickled", lambda generation, _: asked.append(generation))
    for name in ("__0_0_0.distcp", "__0_1_0.distcp"):
        whole = saved.file(name).read_bytes()
        flip_a_bit(saved.file(name))
        with pytest.raises(ManifestMismatchError, match="it was changed"):
            saved.restore(parts(model()), verify="checksums")
        saved.file(name).write_bytes(whole)
    assert asked == []


def test_a_flipped_bit_in_the_metadata_is_found_always(saved: Saved) -> None:
    flip_a_bit(saved.file(".metadata"))
    with pytest.raises(ManifestMismatchError, match=r"file \.metadata is not what the manifest"):
        saved.restore(parts(model()), verify="sizes")


def test_a_changed_manifest_is_refused(saved: Saved) -> None:
    flip_a_bit(saved.file("manifest.json"))
    with pytest.raises(ManifestMismatchError, match="it was changed"):
        saved.restore(parts(model()))


def test_a_manifest_of_another_step_job_or_saver_is_refused(saved: Saved) -> None:
    for changes, says in (
        ({"step": 5}, "says step 5, not 4"),
        ({"job_id": "other"}, "says job other, not job"),
        ({"world_size": 2}, "says world size 2, not 1"),
        ({"layout": {"dp": 2}}, "says layout"),
        ({"saver": "megatron"}, "says saver megatron"),
    ):
        with pytest.raises(RestoreRefusedError, match=says):
            saved.restore(parts(model()), target=saved.forge(**changes))
    with pytest.raises(ManifestMismatchError, match="format version 2"):
        saved.restore(parts(model()), target=saved.forge(format_version=2))


def test_another_world_size_or_layout_is_refused(saved: Saved) -> None:
    four = msgspec.structs.replace(saved.target, world_size=4)
    with pytest.raises(RestoreRefusedError, match="saved by 4 ranks, and this job has 1"):
        saved.restore(parts(model()), target=four)
    with pytest.raises(RestoreRefusedError, match=r"layout \{'dp': 1\}, and this job declares"):
        saved.restore(parts(model()), layout={"dp": 1, "tp": 1})
    with pytest.raises(ConfigError, match="'hashes': choose sizes or checksums"):
        saved.restore(parts(model()), verify="hashes")


def test_another_model_is_refused(saved: Saved) -> None:
    with pytest.raises(RestoreRefusedError, match=r"params/model/0\.weight was saved as \(\(8, 4"):
        saved.restore(parts(model(16)))
    with pytest.raises(RestoreRefusedError, match=r"bfloat16\) here"):
        saved.restore(parts(model(dtype=torch.bfloat16)))
    with pytest.raises(RestoreRefusedError, match=r"no rank wants.*params/model/0\.bias"):
        saved.restore(parts(model(bias=False)))
    larger = model()
    larger.add_module("extra", nn.Linear(2, 2))
    with pytest.raises(RestoreRefusedError, match=r"lacks .*params/model/extra\.bias"):
        saved.restore(parts(larger))


def test_another_optimizer_is_refused(saved: Saved) -> None:
    given = parts(model())
    layers = list(given["model"].children())
    given["optimizer"] = torch.optim.AdamW(
        [{"params": layer.parameters()} for layer in reversed(layers)]
    )
    with pytest.raises(RestoreRefusedError, match="parameter group 0 was saved with 6 parameters"):
        saved.restore(given)
    with pytest.raises(RestoreRefusedError, match="no rank wants: optimizers/optimizer"):
        saved.restore({"model": model(), "loader": Position()})
    two = parts(model())
    two["optimizer"] = [two["optimizer"], torch.optim.SGD(two["model"].parameters(), lr=1.0)]
    with pytest.raises(RestoreRefusedError, match="lacks optimizers/optimizer0/param_groups"):
        saved.restore(two)


def test_other_parts_are_refused(saved: Saved) -> None:
    given = parts(model())
    given["sampler"] = given.pop("loader")
    with pytest.raises(RestoreRefusedError, match=r"saved with the parts \['loader'\], and has"):
        saved.restore(given)


def test_a_part_that_does_not_take_its_state_is_named(tmp_path: Path) -> None:
    saved = Saved(tmp_path, parts(model(), at=1000))
    with pytest.raises(RestoreRefusedError, match=r"loader \(Position\).*beyond the end of the da"):
        saved.restore(parts(model()))


def test_parameters_that_never_had_a_gradient_are_restored_without_state(tmp_path: Path) -> None:
    """torch's own optimizer functions refuse such a checkpoint."""

    def job() -> dict[str, Any]:
        net = model()
        net.register_parameter("unused", nn.Parameter(torch.ones(2)))
        net.register_parameter("frozen", nn.Parameter(torch.ones(2), requires_grad=False))
        return parts(net)

    given = job()
    train_one(given)
    saved = Saved(tmp_path, given)
    again = job()
    saved.restore(again)
    assert len(again["optimizer"].state) == len(given["optimizer"].state) == 6
    for before, after in zip(
        given["optimizer"].state.values(), again["optimizer"].state.values(), strict=True
    ):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)


def test_tied_weights_more_modules_and_several_optimizers(tmp_path: Path) -> None:
    def job() -> dict[str, Any]:
        net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        net[1].weight = net[0].weight
        head = nn.Linear(4, 1)
        temperature = torch.zeros((), requires_grad=True)
        return {
            "model": net,
            "head": head,
            "average": copy.deepcopy(net),
            "optimizer": [
                torch.optim.AdamW(net.parameters()),
                torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9),
                torch.optim.Adam([temperature]),
            ],
        }

    torch.manual_seed(3)
    given = job()
    loss = given["head"](given["model"](torch.ones(2, 4))).sum()
    (loss * given["optimizer"][2].param_groups[0]["params"][0].exp()).backward()
    for optimizer in given["optimizer"]:
        optimizer.step()
    saved = Saved(tmp_path, given)
    again = job()
    saved.restore(again)
    for name in ("model", "head", "average"):
        for key, value in given[name].state_dict().items():
            assert torch.equal(again[name].state_dict()[key], value)
    assert again["model"][0].weight is again["model"][1].weight
    for before, after in zip(given["optimizer"], again["optimizer"], strict=True):
        assert str(before.state_dict()["state"]) == str(after.state_dict()["state"])


def test_numpys_generator_is_restored_where_numpy_is_loaded(tmp_path: Path) -> None:
    numpy.random.seed(4)
    saved = Saved(tmp_path, parts(model()))
    expected = numpy.random.random(3).tolist()
    saved.restore(parts(model()))
    assert numpy.random.random(3).tolist() == expected


def test_the_manifest_lists_exactly_what_was_written(saved: Saved) -> None:
    data = saved.file("manifest.json").read_bytes()
    manifest = msgspec.json.decode(data, type=Manifest)
    names = {path.name for path in saved.file("").iterdir()} - {"manifest.json"}
    assert {entry.name for entry in manifest.entries} == names
    assert all(entry.checksum.startswith("xxh3_128:") for entry in manifest.entries)
