"""Small tensors are written byte for byte as ``torch.save`` writes them, without calling it."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from drainfsm.checkpoint import archives
from drainfsm.checkpoint.archives import archive_of, without_zip_checksums
from drainfsm.checkpoint.writer import FRAME_BYTES, Frame

SMALL = {
    "number": torch.tensor(3.5),
    "row": torch.arange(5.0),
    "table": torch.randn(64, 65),
    "nothing": torch.empty(0, 4),
    "bool": torch.tensor([True, False, True]),
    "bfloat16": torch.randn(4, 4, dtype=torch.bfloat16),
    "float8": torch.ones(2, 2).to(torch.float8_e4m3fn),
    "uint16": torch.arange(3).to(torch.uint16),
    "complex": torch.randn(2, 3, dtype=torch.complex64),
    "rows of a larger one": torch.randn(100, 7)[20:30],
    "dimensions": torch.randn(1, 2, 1, 2, 1, 3, 2, 2),
    "as large as it may be": torch.randn(archives.SMALL_BYTES // 4),
}
OTHER = {
    "large": torch.randn(archives.SMALL_BYTES // 4 + 1),
    "columns": torch.randn(600, 700)[:, 2:4],
    "transposed": torch.randn(3, 4).t(),
    "a kind of its own": torch.randn(3).as_subclass(type("Kind", (Tensor,), {})),
    "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
}


def saved(tensor: Tensor) -> bytes:
    file = io.BytesIO()
    with without_zip_checksums():
        torch.save(tensor.clone(), file)
    return file.getvalue()


@pytest.mark.parametrize("name", SMALL)
def test_it_is_what_torch_writes(name: str) -> None:
    pieces = archive_of(SMALL[name])
    assert pieces is not None
    assert b"".join(pieces) == saved(SMALL[name])


@pytest.mark.parametrize("name", OTHER)
def test_what_torch_has_to_write_is_left_to_it(name: str) -> None:
    assert archive_of(OTHER[name]) is None


def test_torch_is_not_called_again_for_what_it_has_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive_of(torch.zeros(11, 13))
    monkeypatch.setattr(torch, "save", None)
    pieces = archive_of(torch.ones(11, 13))
    monkeypatch.undo()
    assert pieces is not None
    assert b"".join(pieces) == saved(torch.ones(11, 13))


class Stream(io.BytesIO):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[int] = []

    def write(self, data: Any, /) -> int:
        self.writes.append(len(data))
        return super().write(data)


def test_everything_stands_where_the_frame_says() -> None:
    stream = Stream()
    frame = Frame(stream)
    places = []
    others = [tensor for tensor in OTHER.values() if type(tensor) is Tensor]
    between = [one for other in others for one in (SMALL["row"], other)]
    tensors = [*SMALL.values(), *between, *SMALL.values()]
    for tensor in tensors:
        began = frame.tell()
        with without_zip_checksums():
            frame.add_tensor(tensor)
        places.append((began, frame.tell()))
    frame.add([b"the", b"end"])
    frame.flush()
    data = stream.getvalue()
    assert data[places[-1][1] :] == b"theend"
    for tensor, (began, end) in zip(tensors, places, strict=True):
        again = torch.load(io.BytesIO(data[began:end]), weights_only=False)
        assert again.dtype == tensor.dtype
        assert torch.equal(again, tensor)
        assert end - began < tensor.nbytes + 3_000, "no more than this tensor"


def test_small_ones_share_a_write() -> None:
    stream = Stream()
    frame = Frame(stream)
    for number in range(2_000):
        frame.add_tensor(torch.full((16, 16), float(number)))
    frame.flush()
    assert max(stream.writes) < FRAME_BYTES + 4_096
    assert len(stream.writes) == 2_000 * len(saved(torch.zeros(16, 16))) // FRAME_BYTES + 1
