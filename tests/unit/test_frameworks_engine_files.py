"""Files that all ranks of an engine write into one directory: whose they are, what is beside."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from drainfsm.errors import ConfigError, RestoreRefusedError, SaveFailedError
from drainfsm.frameworks import megatron
from drainfsm.frameworks._engine_files import EngineFiles, _dealt_to, guessed_bytes


class Counter:
    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def of_engine(*, world_size: int = 1, job_id: str = "job", **objects: Any) -> EngineFiles:
    """One rank's, with an engine that writes two files."""

    def write(directory: Path) -> None:
        (directory / "deep").mkdir(exist_ok=True)
        (directory / "deep" / "weights").write_text("1")
        (directory / "meta").write_text("2")

    session: Any = SimpleNamespace(rank=0, world_size=world_size, job_id=job_id)
    return EngineFiles(
        session, write=write, read=lambda top: (top / "meta").read_text(), objects=objects
    )


def test_a_rank_answers_for_what_the_engine_wrote_and_for_its_own_state(tmp_path: Path) -> None:
    names = of_engine(loader=Counter(3)).save(tmp_path, 7)
    assert names == ["deep/weights", "meta", "rank0.pt"]


def test_position_and_random_numbers_come_back(tmp_path: Path) -> None:
    of_engine(loader=Counter(3)).save(tmp_path, 7)
    drawn = torch.rand(4)
    restored = Counter(0)
    of_engine(loader=restored).load(tmp_path, 7)
    assert restored.at == 3
    assert torch.equal(torch.rand(4), drawn)


def test_other_objects_than_were_saved_are_refused(tmp_path: Path) -> None:
    of_engine(loader=Counter(3)).save(tmp_path, 7)
    with pytest.raises(RestoreRefusedError, match=r"saved with \['loader'\].*has \['other'\]"):
        of_engine(other=Counter(0)).load(tmp_path, 7)


def test_what_another_number_of_ranks_saved_for_each_starts_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of_engine(loader=Counter(3)).save(tmp_path, 7)
    saved = torch.load(tmp_path / "rank0.pt", weights_only=False)
    torch.save({**saved, "world_size": 2}, tmp_path / "rank0.pt")
    kept = Counter(0)
    of_engine(loader=kept).load(tmp_path, 7)
    assert kept.at == 0
    assert "loader, random states start anew" in caplog.text


def test_what_the_engine_raises_fails_the_save(tmp_path: Path) -> None:
    files = of_engine()
    files._write = lambda _top: 1 / 0
    with pytest.raises(SaveFailedError, match="ZeroDivisionError"):
        files.save(tmp_path, 7)


def test_an_object_without_a_position_is_refused() -> None:
    with pytest.raises(ConfigError, match="state_dict"):
        of_engine(loader=object())


def test_without_an_agent_ranks_need_not_know_each_other() -> None:
    of_engine(world_size=2, job_id="")
    with pytest.raises(ConfigError, match="init_process_group"):
        of_engine(world_size=2)


def test_files_are_dealt_out_in_turn_among_the_ranks_that_see_them() -> None:
    assert [_dealt_to(number, [True, True]) for number in range(4)] == [0, 1, 0, 1]
    assert [_dealt_to(number, [False, True]) for number in range(2)] == [1, 1]


def test_the_first_guess_of_a_ranks_share_is_weights_and_adam_over_the_ranks() -> None:
    model = torch.nn.Linear(9, 10, dtype=torch.bfloat16)
    assert guessed_bytes(model, world_size=4) == 100 * (2 + 3 * 4) // 4
    model.weight.ds_numel = 990  # type: ignore[attr-defined]
    assert guessed_bytes(model, world_size=4) == 1_000 * (2 + 3 * 4) // 4


def test_megatron_without_psutil_is_refused_before_any_save_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "megatron.core.dist_checkpointing.serialization"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "psutil", None)
    part = SimpleNamespace(sharded_state_dict=dict)
    with pytest.raises(ConfigError, match=r"psutil.*pip install 'drainfsm\[megatron\]'"):
        megatron._State(part, part, None, {})
