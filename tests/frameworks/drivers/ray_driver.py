"""Ray Train on the CPU, two workers of a cluster on this machine: DDP, and FSDP2."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer

import drainfsm
from drainfsm.frameworks.ray import drain
from drainfsm_kit.framework_driver import Options, Trace, parse, seed_rank
from drainfsm_kit.framework_loop import Data, Loop, NativeDcp, Plain

STARTS = 5
"""Of the cluster, until one comes up."""


def train(session: drainfsm.Session, config: dict[str, Any]) -> None:
    options: Options = config["options"]
    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    plain = Plain(options)
    data = Data(options, rank)
    trace = Trace(options)
    seed_rank(rank)
    common: Any = {
        "options": options,
        "trace": trace,
        "data": data,
        "learn": plain.learn,
        "judge": plain.judge,
    }
    if options.hook:
        loader: Any = object() if options.misuse == "loader_without_position" else data.loader
        checkpoint = session.checkpoint(
            model=plain.model,
            optimizer=plain.optimizer,
            scheduler=plain.scheduler,
            loader=loader,
        )
        start = checkpoint.restore() if options.misuse != "restore_forgotten" else 0
        loop = Loop(
            step_done=lambda done, last: last and checkpoint.step_done(done - 1),
            phase=session.phase,
            **common,
        )
    else:
        native = NativeDcp(options=options, state={"app": plain}, data=data)
        start = native.start()
        loop = Loop(step_done=native.step_done, **common)
    whole = loop.run(start)
    session.close()
    if whole:
        trace.finished(plain.model, plain.optimizer)


def start_cluster() -> None:
    """Ray gives a node 30 s to come up, and nothing sets another limit: a busy machine takes
    more."""
    os.environ.update(RAY_gcs_server_port_wait_time_s="300")
    os.environ.update(RAY_AUTH_MODE="disabled")  # or Ray writes a token into the home directory
    for start in range(1, STARTS + 1):
        try:
            _start_cluster()
        except Exception as late:
            if start == STARTS or "timed out during startup" not in str(late):
                raise
            ray.shutdown()
        else:
            return


def _start_cluster() -> None:
    ray.init(
        "local",
        num_cpus=3,
        include_dashboard=False,
        object_store_memory=100 << 20,
        _system_config={"enable_worker_prestart": False, "prestart_worker_first_driver": False},
    )


if __name__ == "__main__":
    options = parse()
    drained = drain(train)
    if options.misuse == "node_without_agent":
        os.environ["DRAINFSM_SOCKET"] = ""  # as in a cluster that was there before
    start_cluster()
    trainer = TorchTrainer(
        drained,
        train_loop_config={"options": options},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=f"{Path(options.out).parent}/ray"),
    )
    trainer.fit()
