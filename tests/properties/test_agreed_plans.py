"""A plan that was agreed on once is used again only while it is that of every rank.

Whatever changes between two saves, on one rank or on all, and whatever save fails in between: what
is committed holds every tensor as it was, and nothing else. It is read as torch reads it.
"""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from drainfsm.core.state import generation_id
from drainfsm.testing.stores import new_store
from drainfsm_kit.plan_ranks import Ranks, Tensors, Turn
from drainfsm_kit.ranks import commit_saved

WORLD_SIZE = 2
SHARED = Tensors("shared", rows=4)
NUMBERS = itertools.count()

shared = st.sampled_from(
    [SHARED, SHARED, SHARED._replace(rows=5), SHARED._replace(dtype=torch.float64)]
)
"""Alike on all ranks."""

own = st.integers(0, 2)
"""Tensors that one rank alone has."""

faults = st.sampled_from(["", "", "", "capture", "write"])


class Save(NamedTuple):
    alike: Tensors
    counts: tuple[int, int]
    note: str
    asynchronous: bool
    faults: tuple[str, str]

    def turns(self, step: int) -> list[Turn]:
        return [
            Turn(
                step=step,
                tensors=(self.alike, Tensors(f"own{rank}_", rows=2, how_many=self.counts[rank])),
                note=f"{self.note}{rank}",
                asynchronous=self.asynchronous,
                fault=self.faults[rank],
            )
            for rank in range(WORLD_SIZE)
        ]


saves = st.lists(
    st.builds(
        Save,
        alike=shared,
        counts=st.tuples(own, own),
        note=st.text(max_size=300),
        asynchronous=st.booleans(),
        faults=st.tuples(faults, faults),
    ),
    min_size=2,
    max_size=6,
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(WORLD_SIZE, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


def committed(directory: Path, step: int) -> dict[str, object]:
    """All that the generation holds; torch reads it."""
    generation = generation_id(epoch=1, step=step, saver="p")
    store = new_store(directory / "store")
    commit_saved(store, directory, generation=generation, step=step, world_size=WORLD_SIZE)
    reader = FileSystemReader(directory / "store" / "generations" / generation)
    stored = reader.read_metadata().state_dict_metadata
    found: dict[str, object] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, TensorStorageMetadata)
        else io.BytesIO()
        for name, entry in stored.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a single process is meant
        load(found, storage_reader=reader, no_dist=True)
    return found


def check(found: dict[str, object], all_turns: list[Turn]) -> None:
    tensors = {
        f"params/model/{name}": value
        for turn in all_turns
        for some in turn.tensors
        for name, value in some.values(turn.step).items()
    }
    objects = {f"ranks/{rank:05d}": turn for rank, turn in enumerate(all_turns)}
    assert found.keys() == tensors.keys() | objects.keys()
    for name, value in tensors.items():
        stored = found[name]
        assert isinstance(stored, torch.Tensor)
        assert stored.dtype == value.dtype
        assert torch.equal(stored, value), name
    for name, turn in objects.items():
        of_rank = found[name]
        assert isinstance(of_rank, dict)
        assert (of_rank["step"], of_rank["objects"]) == (turn.step, {"notes": {"note": turn.note}})


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(saves)
def test_no_save_is_written_by_a_plan_that_holds_no_longer(
    ranks: Ranks, tmp_path_factory: pytest.TempPathFactory, saves: list[Save]
) -> None:
    directory = tmp_path_factory.getbasetemp() / f"job{next(NUMBERS)}"
    ranks.begin(directory)
    before: tuple[object, object] | None = None
    for step, save in enumerate(saves):
        all_turns = save.turns(step)
        failed = ranks.save(all_turns)
        sound = not any(turn.fault for turn in all_turns)
        shapes = (save.alike, save.counts)
        if not failed:
            assert sound
            check(committed(directory, step), all_turns)
        elif sound:
            assert all("another rank's state changed" in reason for reason in failed)
            assert before != shapes, "nothing changed since a save in which nothing failed"
        before = shapes if sound else None
