"""The checkpoint store that an option names."""

from __future__ import annotations

from pathlib import Path

from drainfsm.cli.options import BY_KEY
from drainfsm.cli.settings import CONFIG_FILE, Settings
from drainfsm.errors import ConfigError
from drainfsm.store import ObjectStore, open_store


def store_of(settings: Settings) -> ObjectStore:
    """Raises: ConfigError: no store was named, or its kind is not known."""
    url = settings.given("store")
    if url is None:
        option = BY_KEY["store"]
        raise ConfigError(
            f"{option.flag} is missing; or set {option.variable}, or `store` in {CONFIG_FILE}"
        )
    return open_store(str(url))


def decisions_in(state_dir: Path, *, job: str) -> ObjectStore:
    """Where a supervisor records its decisions about the job."""
    return open_store(str((state_dir / job).absolute()))
