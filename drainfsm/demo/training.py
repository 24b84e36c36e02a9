"""The demo's training job: a small transformer on the source files of Python's standard library.

It is an ordinary torchrun script. Only the lines with ``session`` and ``checkpoint`` in ``main``
are for drainfsm; run without an agent it trains from step 0 to the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import drainfsm

CONTEXT = 64
BATCH = 8
WIDTH = 96
CORPUS_BYTES = 2_000_000


class TextWindows:
    """Windows of text in an order fixed by the seed. Its state is how many were handed out."""

    def __init__(self, *, rank: int, world_size: int, seed: int) -> None:
        library = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(library.glob("*.py")))
        self._text = torch.frombuffer(bytearray(text[:CORPUS_BYTES]), dtype=torch.uint8)
        order = torch.Generator().manual_seed(seed)
        self._starts = torch.randperm(len(self._text) - CONTEXT - 1, generator=order)
        self._rank, self._world_size = rank, world_size
        self.batches_taken = 0

    def next_batch(self) -> tuple[Tensor, Tensor]:
        first = (self.batches_taken * self._world_size + self._rank) * BATCH
        self.batches_taken += 1
        picks = torch.arange(first, first + BATCH) % len(self._starts)
        windows = [self._text[s : s + CONTEXT + 1] for s in self._starts[picks].tolist()]
        tokens = torch.stack(windows).long()
        return tokens[:, :-1], tokens[:, 1:]

    def state_dict(self) -> dict[str, int]:
        return {"batches_taken": self.batches_taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batches_taken = state["batches_taken"]


class TinyTransformer(nn.Module):
    """A byte-level language model, small enough for two CPU cores."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.1, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        size = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(size)
        hidden = self.tokens(tokens) + self.places(torch.arange(size))
        logits: Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return logits


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    model = TinyTransformer()
    torch.manual_seed(options.seed + rank)  # dropout differs between ranks
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    loader = TextWindows(rank=rank, world_size=world_size, seed=options.seed)

    session = drainfsm.attach()
    checkpoint = session.checkpoint(
        model=model, optimizer=optimizer, scheduler=scheduler, loader=loader
    )
    for step in range(checkpoint.restore(), options.steps):
        loss = _train_one(model, optimizer, scheduler, loader)
        if rank == 0:
            _write_loss(options.losses, step=step, loss=loss)
        time.sleep(options.pause_ms / 1_000)
        if checkpoint.step_done(step):
            break
    session.close()
    dist.destroy_process_group()


def _train_one(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    loader: TextWindows,
) -> float:
    tokens, targets = loader.next_batch()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    _average_gradients(model)
    optimizer.step()
    scheduler.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def _average_gradients(model: nn.Module) -> None:
    """Data parallel by hand, in one piece.

    DistributedDataParallel sums in another order in the first step after a start (it rebuilds its
    buckets then), so a resumed run would differ in the last bits. This one does not.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, averaged in zip(gradients, torch.split(flat, sizes), strict=True):
        gradient.copy_(averaged.view_as(gradient))


def _write_loss(path: Path, *, step: int, loss: float) -> None:
    line = {"step": step, "loss": loss, "at_unix_ms": time.time_ns() // 1_000_000}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of the whole run")
    parser.add_argument("--losses", type=Path, default=Path(os.devnull), help="JSON lines, rank 0")
    parser.add_argument("--pause-ms", type=int, default=0, help="wait after each step")
    parser.add_argument("--seed", type=int, default=1234)
    return parser.parse_args()


if __name__ == "__main__":
    main()
