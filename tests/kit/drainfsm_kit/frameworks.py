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
            "fitted_twice": Misuse("ConfigError", "drain(trainer)"),
        },
    ),
)
