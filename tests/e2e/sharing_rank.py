"""One of the ranks of test_sharing.py, which are on two machines as far as they can tell.

python sharing_rank.py RANK WORLD_SIZE DIRECTORY RENDEZVOUS_FILE STORE_URL [DIGEST VERIFY]

Without the last two it saves; with them it restores twice, one after the other, and writes a digest
of what it has then.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from drainfsm.checkpoint import Checkpoint, sharing
from drainfsm.checkpoint.filling import memory_of
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm.core.state import periodic_id
from drainfsm.core.words import Verification
from drainfsm_kit.ranks import RecordedPort

WIDTH = 1_100
STEP = 0
TIMES = 2
GENERATION = periodic_id(epoch=1, step=STEP, restart=0)


class Model(nn.Module):
    def __init__(self, world_size: int) -> None:
        super().__init__()
        self.large = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        for name, value in {
            "brain": torch.randn(WIDTH, WIDTH).to(torch.bfloat16),
            "turned": torch.randn(WIDTH, WIDTH).t(),
            "imaginary": torch.randn(WIDTH, WIDTH, dtype=torch.complex64),
            "tiny": torch.randn(WIDTH, WIDTH).to(torch.float8_e5m2),
        }.items():
            self.register_buffer(name, value)
        self.register_buffer("none", torch.empty(0, 3))
        self.register_buffer("count", torch.tensor(3))
        self.sharded = nn.Linear(WIDTH, WIDTH)
        fully_shard(self.sharded, mesh=init_device_mesh("cpu", (world_size,)))

    def digest(self) -> str:
        whole = hashlib.sha256()
        for _, value in sorted(self.state_dict().items()):
            tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
            whole.update(memory_of(tensor.contiguous()))
        return whole.hexdigest()


def main() -> None:
    rank, world_size, directory, rendezvous, url, *more = sys.argv[1:]
    sharing.BOOT = Path(directory) / f"boot{int(rank) // 2}"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=int(rank),
        world_size=int(world_size),
    )
    torch.manual_seed(len(more))
    target = None
    if more:
        target = RestoreTarget(
            generation_id=GENERATION,
            manifest_digest=more[0],
            step=STEP,
            world_size=int(world_size),
            layout={},
        )
    settings = CheckpointSettings(
        every_steps=1, verify=Verification(more[1] if more else Verification.SIZES)
    )
    found = []
    for _ in range(TIMES if more else 1):
        model = Model(int(world_size))
        port = RecordedPort(
            Path(directory), store_url=url, rank=int(rank), world_size=int(world_size),
            settings=settings, restore_target=target,
        )  # fmt: skip
        checkpoint = Checkpoint(port, model=model)
        if more:
            try:
                checkpoint.restore()
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
                break
        else:
            checkpoint.step_done(STEP)
            checkpoint.close()
        found.append(model.digest())
    (Path(directory) / f"found{rank}").write_text("\n".join(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
