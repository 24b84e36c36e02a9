"""One rank of the object store benchmark: bare obstore, a peer, and ours."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import torch
import torch.distributed as dist
from obstore.store import from_url
from s3torchconnector import S3ClientConfig
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bench.processes import peak_begins_mib, resident_mib
from drainfsm.checkpoint import Checkpoint
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm.core.state import generation_id
from drainfsm.core.words import Verification
from drainfsm.store import open_store
from drainfsm.store.generations import generation_prefix
from drainfsm_kit.ranks import RecordedPort, commit_saved
from drainfsm_kit.s3 import BUCKET

WIDTH = 1024
LAYER_BYTES = WIDTH * WIDTH * 4
STREAMS = 2
"""Files that a rank writes at once; the bare client puts as many objects."""

RANGE_BYTES = 4 << 20
RANGES_AT_ONCE = 16


class Job:
    """A model in FSDP2 shards, kept in every way; and all ways there and back."""

    def __init__(self, directory: Path, *, rank: int, world_size: int, mib: int) -> None:
        self.directory, self.rank, self.world_size = directory, rank, world_size
        torch.manual_seed(7)
        count = (mib << 20) // LAYER_BYTES
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)]
        mesh = init_device_mesh("cpu", (world_size,))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        self.model = nn.Sequential(*layers)
        self.group: Any = dist.new_group(backend="gloo")
        self.share_bytes = count * LAYER_BYTES // world_size
        self.number = 0
        client: Any = {"allow_http": True, "timeout": "120s"}
        self.bare = from_url(f"s3://{BUCKET}/bare/{rank}", client_options=client)
        self.halves = [bytes(self.share_bytes // STREAMS)] * STREAMS
        self.place = memoryview(bytearray(self.share_bytes // STREAMS * STREAMS))
        self.peer_config = S3ClientConfig(force_path_style=True)
        self.peak: dict[str, float] = {}
        self.bare_put()
        self.peer_save()
        self.save(keep=True)

    def bare_put(self) -> float:
        """This rank's bytes in two objects, with obstore's own parts (5 MiB, 12 at once)."""
        began = self._begin()
        with ThreadPoolExecutor(STREAMS) as pool:
            for put in [
                pool.submit(obstore.put, self.bare, f"{number}", half, use_multipart=True)
                for number, half in enumerate(self.halves)
            ]:
                put.result()
        return self._over(began)

    def bare_get(self) -> float:
        """The same bytes by as many ranges at once as ours, into memory that is there."""
        began = self._begin()
        half = self.share_bytes // STREAMS
        with ThreadPoolExecutor(RANGES_AT_ONCE) as pool:
            for got in [
                pool.submit(self._get, number, at, min(RANGE_BYTES, half - at))
                for number in range(STREAMS)
                for at in range(0, half, RANGE_BYTES)
            ]:
                got.result()
        return self._over(began)

    def _get(self, number: int, at: int, length: int) -> None:
        data = obstore.get_range(self.bare, f"{number}", start=at, length=length)
        start = number * (self.share_bytes // STREAMS) + at
        self.place[start : start + length] = memoryview(data)

    def peer_save(self) -> float:
        began = self._begin()
        writer = S3StorageWriter("us-east-1", self._peer, self.peer_config, overwrite=True)
        state = {"m": get_model_state_dict(self.model)}
        save(state, storage_writer=writer, process_group=self.group)
        return self._over(began)

    def peer_load(self) -> float:
        began = self._begin()
        reader = S3StorageReader("us-east-1", self._peer, self.peer_config)
        state = {"m": get_model_state_dict(self.model)}
        load(state, storage_reader=reader, process_group=self.group)
        set_model_state_dict(self.model, state["m"])
        return self._over(began)

    @property
    def _peer(self) -> str:
        return f"s3://{BUCKET}/peer/"

    def save(self, *, keep: bool = False) -> float:
        """To the commit record."""
        self.number += 1
        port = self._port(drain_at=self.number)
        checkpoint = Checkpoint(port, model=self.model)
        began = self._begin()
        self._watch()
        checkpoint.step_done(self.number)
        self._watched("save")
        checkpoint.close()
        dist.barrier()
        generation = generation_id(epoch=1, step=self.number, saver="d1")
        targets: list[Any] = [None]
        store = open_store(port.store_url)
        if self.rank == 0:
            targets = [
                commit_saved(
                    store, self.directory, generation=generation, step=self.number,
                    world_size=self.world_size,
                )
            ]  # fmt: skip
        took = self._over(began)
        if keep:
            dist.broadcast_object_list(targets)
            self.target: RestoreTarget = targets[0]
        elif self.rank == 0:
            store.delete_tree(generation_prefix(generation))
        dist.barrier()
        return took

    def restore(self, verify: str) -> float:
        port = self._port(
            settings=CheckpointSettings(verify=Verification(verify)),
            restore_target=self.target,
        )
        checkpoint = Checkpoint(port, model=self.model)
        began = self._begin()
        self._watch()
        assert checkpoint.restore() == self.target.step + 1
        self._watched("restore")
        return self._over(began)

    def _port(self, **more: Any) -> RecordedPort:
        return RecordedPort(
            self.directory,
            store_url=f"s3://{BUCKET}/ours",
            rank=self.rank,
            world_size=self.world_size,
            **more,
        )

    def _watch(self) -> None:
        self._before = peak_begins_mib()

    def _watched(self, name: str) -> None:
        """The peak beyond what was there before: the share itself is in the parameters."""
        beyond = resident_mib(os.getpid(), "VmHWM") - self._before
        self.peak[name] = max(self.peak.get(name, 0.0), beyond)

    def _begin(self) -> float:
        dist.barrier()
        return time.perf_counter()

    def _over(self, began: float) -> float:
        dist.barrier()
        return time.perf_counter() - began


def cases(
    rank: int, world_size: int, directory: Path, *, mib: int
) -> dict[str, Callable[[], float]]:
    job = Job(directory, rank=rank, world_size=world_size, mib=mib)
    return {
        "bare put": job.bare_put,
        "peer save": job.peer_save,
        "save": job.save,
        "bare get": job.bare_get,
        "peer load": job.peer_load,
        "restore sizes": lambda: job.restore("sizes"),
        "restore checksums": lambda: job.restore("checksums"),
        "save MiB": lambda: job.peak["save"],
        "restore MiB": lambda: job.peak["restore"],
    }
