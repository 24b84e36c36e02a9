"""Tensors of every kind: saved and restored bit for bit, or refused before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from drainfsm.checkpoint import Checkpoint
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.state import generation_id
from drainfsm.core.words import Verification
from drainfsm.errors import ConfigError
from drainfsm.testing.stores import new_store
from drainfsm_kit.ranks import RecordedPort, commit_saved

STEP = 4


class Marked(Tensor):
    """A class of a job's own."""


def inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(5)


SAVED: dict[str, Callable[[], Tensor]] = {
    "nothing": lambda: torch.empty(3, 0, 2),
    "one number": lambda: torch.randn(()),
    "complex": lambda: torch.randn(5, 3, dtype=torch.complex64),
    "conjugated": lambda: torch.randn(4, dtype=torch.complex128).conj(),
    "negated": lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
    "complex32": lambda: torch.randn(4, dtype=torch.complex64).to(torch.complex32),
    "bool": lambda: torch.randn(9) > 0,
    "uint16": lambda: torch.randint(0, 60_000, (9,)).to(torch.uint16),
    "uint64": lambda: torch.randint(0, 60_000, (9,)).to(torch.uint64),
    "bfloat16": lambda: torch.randn(9).bfloat16(),
    "float8_e4m3fn": lambda: torch.rand(999).to(torch.float8_e4m3fn),
    "float8_e5m2fnuz": lambda: torch.rand(999).to(torch.float8_e5m2fnuz),
    "float8_e8m0fnu": lambda: torch.rand(999).to(torch.float8_e8m0fnu),
    "float4": lambda: torch.randint(0, 255, (8,), dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "rows of another": lambda: torch.randn(10, 10)[3:5],
    "columns of another": lambda: torch.randn(1_200, 1_000)[:, ::2],
    "across": lambda: torch.randn(600, 700).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(3, 1, 2).expand(3, 400, 2),
    "expanded from one": lambda: torch.randn(1).expand(500, 700),
    "of a class of its own": lambda: torch.randn(4).as_subclass(Marked),
}
REFUSED: dict[str, tuple[Callable[[], Tensor], str]] = {
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 3, torch.qint8), "quant"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
    "sparse rows": (lambda: torch.eye(3).to_sparse_csr(), "sparse_csr"),
    "mkldnn": (lambda: torch.eye(3).to_mkldnn(), "mkldnn"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "nested"),
    "made in inference mode": (inference, "inference mode"),
}


class Holding(nn.Linear):
    odd: Tensor

    def __init__(self, make: Callable[[], Tensor], *, persistent: bool = True) -> None:
        super().__init__(2, 2)
        self.register_buffer("odd", make(), persistent=persistent)


def bits(tensor: Tensor) -> bytes:
    plain = tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg().clone()
    whole = plain.contiguous().view(-1).view(torch.uint8) if plain.numel() else torch.empty(0)
    return whole.numpy().tobytes()


@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("kind", SAVED)
def test_a_tensor_comes_back_bit_for_bit(tmp_path: Path, kind: str, asynchronous: bool) -> None:
    new_store(tmp_path / "store")
    torch.manual_seed(1)
    saved = Holding(SAVED[kind])
    wanted = bits(saved.odd)
    settings = CheckpointSettings(
        every_steps=1, asynchronous=asynchronous, verify=Verification.CHECKSUMS
    )
    url = str(tmp_path / "store")
    port = RecordedPort(tmp_path, store_url=url, settings=settings)
    checkpoint = Checkpoint(port, model=saved)
    checkpoint.step_done(STEP)
    checkpoint.close()
    generation = generation_id(epoch=1, step=STEP, saver="p")
    store = new_store(tmp_path / "store")
    target = commit_saved(store, tmp_path, generation=generation, step=STEP, world_size=1)
    torch.manual_seed(2)
    again = Holding(SAVED[kind])
    port = RecordedPort(tmp_path, store_url=url, settings=settings, restore_target=target)
    assert Checkpoint(port, model=again).restore() == STEP + 1
    assert bits(again.odd) == wanted
    assert torch.equal(again.weight, saved.weight)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantiz:UserWarning")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_could_not_be_restored_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    new_store(tmp_path / "store")
    make, named = REFUSED[kind]
    port = RecordedPort(tmp_path, store_url=str(tmp_path / "store"))
    with pytest.raises(ConfigError, match=rf"'model': odd is no ordinary tensor \(.*{named}"):
        Checkpoint(port, model=Holding(make))
    Checkpoint(port, model=Holding(make, persistent=False))
