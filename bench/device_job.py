"""What ``bench.device`` measures: one process's state on a device, by torch's ways and ours."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from drainfsm.checkpoint import Checkpoint
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm.core.state import generation_id
from drainfsm.store import open_store
from drainfsm_kit.ranks import RecordedPort, commit_saved

WIDTH = 1024
STATE_COPIES = 3
"""A parameter and AdamW's two moments."""

MATMULS = 64


class Job:
    def __init__(self, directory: Path, *, mib: int, device: torch.device) -> None:
        warnings.simplefilter("ignore", UserWarning)  # torch's ways, in a single process
        self.directory, self.device = directory, device
        count = max(1, (mib << 20) // (WIDTH * WIDTH * 4 * STATE_COPIES))
        layers = [nn.Linear(WIDTH, WIDTH, bias=False, device=device) for _ in range(count)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.number = 0
        self.port = self._port("periodic", asynchronous=True)
        self.checkpoint = self._checkpoint(self.port)
        self.target = self._saved_once()

    def tensors(self) -> list[Tensor]:
        state = self.optimizer.state.values()
        moments = (value for entries in state for value in entries.values() if value.dim())
        return [*(parameter.detach() for parameter in self.model.parameters()), *moments]

    def torch_save(self) -> float:
        path = self.directory / "torch.pt"
        with _Timed(self.device) as timed:
            torch.save([self.model.state_dict(), self.optimizer.state_dict()], path)
        return timed.took_s

    def dcp_async_save(self) -> float:
        path = self._fresh()
        with _Timed(self.device) as timed:
            future: Any = async_save(self._state(), checkpoint_id=path, no_dist=True)
        future.result()
        shutil.rmtree(path)
        return timed.took_s

    def async_save(self) -> float:
        self.number += 1
        with _Timed(self.device) as timed:
            self.checkpoint.step_done(self.number)
        self.checkpoint.close()
        return self._cleaned(self.port, timed)

    def drain_save(self) -> float:
        self.number += 1
        port = self._port("drain", drain_at=self.number)
        checkpoint = self._checkpoint(port)
        with _Timed(self.device) as timed:
            checkpoint.step_done(self.number)
        return self._cleaned(port, timed)

    def torch_load(self) -> float:
        path = self.directory / "torch.pt"
        if not path.exists():
            self.torch_save()
        with _Timed(self.device) as timed:
            model, optimizer = torch.load(path, map_location=self.device, mmap=True)
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
        return timed.took_s

    def dcp_load(self) -> float:
        with _Timed(self.device) as timed:
            state = self._state()
            load(state, checkpoint_id=self.directory / "dcp", no_dist=True)
            set_state_dict(
                self.model,
                self.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
        return timed.took_s

    def restore(self) -> float:
        port = self._port("once", restore_target=self.target)
        checkpoint = self._checkpoint(port)
        with _Timed(self.device) as timed:
            checkpoint.restore()
        return timed.took_s

    def close(self) -> None:
        self.checkpoint.close()

    def _state(self) -> dict[str, Any]:
        return dict(
            zip(("model", "optimizer"), get_state_dict(self.model, self.optimizer), strict=True)
        )

    def _saved_once(self) -> RestoreTarget:
        """For restoring: by torch and by us."""
        save(self._state(), checkpoint_id=self.directory / "dcp", no_dist=True)
        port = self._port("once", drain_at=0)
        self._checkpoint(port).step_done(0)
        return commit_saved(
            open_store(port.store_url),
            self.directory / "once",
            generation=generation_id(epoch=1, step=0, saver="d1"),
            step=0,
            world_size=1,
        )

    def _port(self, name: str, *, asynchronous: bool = False, **options: Any) -> RecordedPort:
        root = self.directory / name
        root.mkdir(exist_ok=True)
        settings = CheckpointSettings(every_steps=1 if asynchronous else 0)
        return RecordedPort(root, store_url=str(root / "store"), settings=settings, **options)

    def _checkpoint(self, port: RecordedPort) -> Checkpoint:
        return Checkpoint(port, model=self.model, optimizer=self.optimizer)

    def _fresh(self) -> Path:
        self.number += 1
        return self.directory / f"save{self.number}"

    def _cleaned(self, port: RecordedPort, timed: _Timed) -> float:
        if failed := port.of("failed"):
            raise AssertionError(failed)
        for path in Path(port.store_url).glob("generations/*"):
            shutil.rmtree(path)
        return timed.took_s


class Copies:
    """The bare copies, and what they cost the compute beside them. A device is needed."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.device = tensors[0].device
        self.host = {
            pinned: [torch.empty(t.shape, dtype=t.dtype, pin_memory=pinned) for t in tensors]
            for pinned in (True, False)
        }
        self.beside: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.factor = torch.randn(4096, 4096, device=self.device, dtype=torch.bfloat16)

    def to_host(self, *, pinned: bool) -> float:
        with _Timed(self.device) as timed:
            self._copy(pinned=pinned)
        return timed.took_s

    def to_device(self) -> float:
        with _Timed(self.device) as timed:
            for tensor, host in self._pairs(pinned=True):
                tensor.copy_(host, non_blocking=True)
        return timed.took_s

    def compute(self, *, beside: bool) -> float:
        """Until the compute is over; the copy may take longer."""
        with _Timed(self.device, stream=torch.cuda.current_stream(self.device)) as timed:
            if beside:
                self.beside.wait_stream(torch.cuda.current_stream(self.device))
                with torch.cuda.stream(self.beside):
                    self._copy(pinned=True)
            product = self.factor
            for _ in range(MATMULS):
                product = product @ self.factor
        return timed.took_s

    def _copy(self, *, pinned: bool) -> None:
        for tensor, host in self._pairs(pinned=pinned):
            host.copy_(tensor, non_blocking=True)

    def _pairs(self, *, pinned: bool) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.tensors, self.host[pinned], strict=True)


class _Timed:
    """Wall time, with nothing pending on the device (or one stream of it) at either end."""

    def __init__(self, device: torch.device, *, stream: Any = None) -> None:
        self.took_s = 0.0
        self._device = device
        self._stream = stream

    def __enter__(self) -> _Timed:
        self._synchronize(all_streams=True)
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._synchronize(all_streams=self._stream is None)
        self.took_s = time.perf_counter() - self._began

    def _synchronize(self, *, all_streams: bool) -> None:
        if self._device.type != "cuda":
            return
        if all_streams:
            torch.cuda.synchronize(self._device)
        else:
            self._stream.synchronize()
