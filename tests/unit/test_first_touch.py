"""What somebody meets who tries it for the first time: each message says what to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import drainfsm
import drainfsm.session
from drainfsm.checkpoint import Checkpoint
from drainfsm.checkpoint.own import OwnCheckpoint
from drainfsm.checkpoint.own_files import found_files
from drainfsm.cli.run import parser
from drainfsm.cli.settings import load_settings
from drainfsm.errors import ConfigError, SaveFailedError
from drainfsm.store import checksums
from drainfsm.testing.stores import new_store
from drainfsm_kit.ranks import RecordedPort, Report


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As where the package is not installed."""
    found = importlib.util.find_spec

    def find_spec(name: str, parent: str | None = None) -> object:
        return None if name == package else found(name, parent)

    for module in (checksums, drainfsm.session):
        monkeypatch.setattr(module, "find_spec", find_spec)


def test_torchs_own_data_loader_is_answered_with_the_one_to_take(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(4)))
    with pytest.raises(ConfigError, match=r"StatefulDataLoader.*pip install torchdata"):
        Checkpoint(
            RecordedPort(tmp_path, store_url=new_store(tmp_path / "store").url),
            model=nn.Linear(1, 1),
            loader=loader,
        )


def test_an_own_checkpoint_needs_nothing_that_a_plain_install_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "xxhash")
    port = RecordedPort(tmp_path, store_url=new_store(tmp_path / "store").url)

    def save(directory: Path, step: int) -> None:
        (directory / "step").write_text(str(step))

    OwnCheckpoint(port, save=save, load=lambda directory, step: None).step_done(0)
    port.close()
    durable: list[Report] = [report for report in port.reports if report.kind == "durable"]
    assert [entry.checksum[:7] for report in durable for entry in report.entries] == ["sha256:"]


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch")
    session = drainfsm.attach(rank=0, world_size=1)
    with pytest.raises(ConfigError, match=r"pip install 'drainfsm\[torch\]'.*own_checkpoint"):
        session.checkpoint(model=nn.Linear(1, 1))


@pytest.mark.parametrize("said", [7, Path("weights.pt"), "weights.pt"])
def test_what_a_saver_may_return_is_said(tmp_path: Path, said: object) -> None:
    with pytest.raises(
        SaveFailedError, match="return a list of names, a mapping of names to checksums"
    ):
        found_files(tmp_path, said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--reshard", "maybe"], "--reshard: 'maybe' is neither true nor false"),
        (["--layout", "dp"], "--layout: 'dp' is not KEY=N"),
    ],
)
def test_a_value_that_will_not_do_is_answered_with_one_that_will(
    tmp_path: Path, argv: list[str], says: str
) -> None:
    given = vars(parser().parse(["--job", "a", "--store", "b", *argv]))
    with pytest.raises(ConfigError, match=says):
        load_settings(given, environment={}, directory=tmp_path).run_config(["true"])


def test_a_switch_may_stand_alone(tmp_path: Path) -> None:
    given = vars(parser().parse(["--job", "a", "--store", "b", "--create-store", "--reshard"]))
    config = load_settings(given, environment={}, directory=tmp_path).run_config(["true"])
    assert config.create_store
    assert config.checkpoint.reshard
