"""The frameworks that ``tests/frameworks`` runs."""

from __future__ import annotations

from drainfsm.core.orders import CheckpointSettings
from drainfsm_kit.framework_contract import Framework, Misuse

FRAMEWORKS = (
    Framework(
        name="lightning",
        packages=("lightning",),
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
)
