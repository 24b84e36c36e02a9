"""Sharing a save out over the ranks."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from drainfsm.checkpoint.planner import CUT_BYTES, item_bytes, share_out
from drainfsm.checkpoint.serialised import Serialised

MIB = 1 << 20


def floats(*size: int) -> Tensor:
    return torch.empty(size, device="meta")


def plan_of(state: dict[str, object]) -> SavePlan:
    return create_default_local_save_plan(state, is_coordinator=False)


def rows_of(item: WriteItem) -> tuple[int, int]:
    assert item.tensor_data is not None
    chunk = item.tensor_data.chunk
    return chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0]


def test_a_large_replica_is_cut_into_equal_shares() -> None:
    state: dict[str, object] = {"params/model/embedding": floats(10_000, 1_024)}
    shares = share_out([plan_of(state) for _ in range(4)])
    assert [len(share.items) for share in shares] == [1, 1, 1, 1]
    assert sorted(rows_of(share.items[0]) for share in shares) == [
        (0, 2_500),
        (2_500, 5_000),
        (5_000, 7_500),
        (7_500, 10_000),
    ]


def test_small_replicas_stay_whole_and_are_spread() -> None:
    state: dict[str, object] = {f"params/model/{i}": floats(i + 1, 256) for i in range(16)}
    shares = share_out([plan_of(state) for _ in range(2)])
    sizes = [sum(item_bytes(item) for item in share.items) for share in shares]
    assert sum(sizes) == sum((i + 1) * 1_024 for i in range(16))
    assert max(sizes) <= 0.51 * sum(sizes)


def test_buffers_are_the_first_ranks() -> None:
    """Replicas of a buffer may differ; DDP's forward takes the first rank's."""
    state: dict[str, object] = {
        "buffers/model/mean": floats(3_000_000),
        "params/model/weight": floats(8, 8),
    }
    shares = share_out([plan_of(state) for _ in range(2)])
    assert [item.index.fqn for item in shares[0].items] == ["buffers/model/mean"]
    assert [item.index.fqn for item in shares[1].items] == ["params/model/weight"]


def test_what_one_rank_alone_has_is_its_own() -> None:
    plans = [plan_of({f"ranks/{r:05d}": Serialised(r), "params/m/w": floats(4)}) for r in range(3)]
    shares = share_out(plans)
    for rank, share in enumerate(shares):
        assert f"ranks/{rank:05d}" in [item.index.fqn for item in share.items]
    assert sum(len(share.items) for share in shares) == 4


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 300, 40_000])), max_size=12),
)
def test_every_byte_is_written_once(ranks: int, sizes: list[tuple[int, int]]) -> None:
    state: dict[str, object] = {
        f"params/model/{number}": floats(rows, 256 * columns)
        for number, (rows, columns) in enumerate(sizes)
    }
    shares = share_out([plan_of(state) for _ in range(ranks)])
    pieces: dict[str, list[tuple[int, int]]] = {}
    for share in shares:
        for item in share.items:
            pieces.setdefault(item.index.fqn, []).append(rows_of(item))
    assert pieces.keys() == state.keys()
    for number, (rows, _) in enumerate(sizes):
        cuts = sorted(pieces[f"params/model/{number}"])
        assert cuts[0][0] == 0
        assert cuts[-1][1] == rows
        assert all(a[1] == b[0] for a, b in pairwise(cuts))
    loads = [sum(item_bytes(item) for item in share.items) for share in shares]
    largest = max((item_bytes(item) for share in shares for item in share.items), default=0)
    assert max(loads) - min(loads) <= max(largest, 2 * CUT_BYTES)
