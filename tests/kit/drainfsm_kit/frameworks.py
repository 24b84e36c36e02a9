"""The frameworks that ``tests/frameworks`` runs."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from drainfsm.core.orders import CheckpointSettings
from drainfsm_kit.framework_contract import Framework, Misuse
from drainfsm_kit.framework_driver import Options


def alone(driver: Path, options: Options) -> tuple[str, ...]:
    """A driver that starts the ranks itself."""
    return (sys.executable, str(driver), msgspec.json.encode(options).decode())


FRAMEWORKS = (
    Framework(
        name="lightning",
        packages=("lightning",),
        native_exact=False,  # Lightning keeps no random states
        misuses={
            "restore_forgotten": Misuse("NotRestoredError", "ckpt_path=", after_drain=True),
            "saves_doubled": Misuse(
                "ConfigError", "enable_checkpointing=False", CheckpointSettings(every_steps=2)
            ),
            "loader_without_position": Misuse("ConfigError", "StatefulDataLoader"),
            "order_not_repeatable": Misuse("ConfigError", "sampler=DistributedSampler"),
            "fitted_twice": Misuse("ConfigError", "drain(trainer)"),
        },
    ),
    Framework(
        name="transformers",
        packages=("transformers", "accelerate"),
        misuses={
            "restore_forgotten": Misuse(
                "NotRestoredError", "resume_from_checkpoint=drain(trainer)", after_drain=True
            ),
            "saves_doubled": Misuse(
                "ConfigError", "save_strategy='no'", CheckpointSettings(every_steps=2)
            ),
            "saved_at_sigterm": Misuse("ConfigError", "enable_jit_checkpoint"),
            "trained_twice": Misuse("ConfigError", "drain(trainer)"),
        },
    ),
    Framework(
        name="accelerate",
        packages=("accelerate",),
        native_exact=False,  # the loader draws from the random states that load_state has set
        misuses={
            "not_prepared": Misuse("ConfigError", "after accelerator.prepare"),
            "restore_forgotten": Misuse("ConfigError", "for epoch in loop.epochs"),
            "saves_doubled": Misuse(
                "ConfigError", "accelerator.save_state", CheckpointSettings(every_steps=2)
            ),
            "order_not_repeatable": Misuse("ConfigError", "use_seedable_sampler=True"),
            "two_places": Misuse("ConfigError", "use_stateful_dataloader"),
        },
    ),
    Framework(
        name="deepspeed",
        packages=("deepspeed",),
        apart=True,
        has_extra=False,
        misuses={
            "restore_forgotten": Misuse("NotRestoredError", "restore()", after_drain=True),
            "loader_without_position": Misuse("ConfigError", "state_dict()"),
            "no_engine": Misuse("ConfigError", "deepspeed.initialize"),
            "node_local": Misuse("ConfigError", "use_node_local_storage"),
            "calls_left_out": Misuse("ConfigError", "after every engine.step()"),
        },
    ),
    Framework(
        name="ray",
        packages=("ray",),
        apart=True,
        beside=("ray[default]",),  # jobs can be submitted to it
        outlives_sigterm=False,
        ends_its_ranks=True,
        has_extra=False,
        launcher=alone,
        misuses={
            "restore_forgotten": Misuse("NotRestoredError", "restore()", after_drain=True),
            "loader_without_position": Misuse("ConfigError", "state_dict()"),
            "node_without_agent": Misuse("ConfigError", "ray start --block"),
        },
    ),
    Framework(
        name="megatron",
        packages=("megatron.core",),
        apart=True,
        has_extra=False,
        misuses={
            "restore_forgotten": Misuse("NotRestoredError", "restore()", after_drain=True),
            "loader_without_position": Misuse("ConfigError", "state_dict()"),
            "no_megatron_module": Misuse("ConfigError", "MegatronModule"),
        },
    ),
    Framework(
        name="composer",
        packages=("composer",),
        apart=True,
        has_extra=False,
        shardings=("ddp",),
        misuses={
            "restore_forgotten": Misuse("NotRestoredError", "hook.load_path", after_drain=True),
            "saves_doubled": Misuse("ConfigError", "save_folder"),
        },
    ),
    Framework(
        name="torchtitan",
        packages=("torchtitan",),
        apart=True,
        beside=("triton",),  # a torch that is built for CUDA brings it
        has_extra=False,
        misuses={
            "saves_doubled": Misuse("ConfigError", "checkpoint.enable"),
            "drained_twice": Misuse("ConfigError", "once"),
        },
    ),
    Framework(
        name="dcp",
        packages=("torchdata",),
        has_extra=False,
        misuses={
            "restore_forgotten": Misuse("NotRestoredError", "restore()", after_drain=True),
            "loader_without_position": Misuse("ConfigError", "state_dict()"),
            "not_stateful": Misuse("ConfigError", "state_dict()"),
        },
    ),
    Framework(
        name="torchft",
        packages=("torchft",),
        apart=True,
        has_extra=False,
    ),
)
