"""Finds adapters by their entry point and loads them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from drainfsm.adapter import Adapter, AdapterContext, AdapterFactory
from drainfsm.errors import ConfigError

GROUP = "drainfsm.adapters"


def adapter_names() -> tuple[str, ...]:
    """Installed adapters, sorted."""
    return tuple(sorted(entry_points(group=GROUP).names))


def find_adapter(name: str, *, option: str = "source") -> EntryPoint:
    """The entry point of that name; imports nothing yet.

    Raises:
        ConfigError: no such adapter is installed.
    """
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        known = ", ".join(adapter_names()) or "none"
        raise ConfigError(f"--{option} {name}: no such adapter is installed (installed: {known})")
    return found[0]


def load_adapter(name: str, context: AdapterContext) -> Adapter:
    """The adapter of that name.

    Raises:
        ConfigError: no such adapter is installed, or its own dependencies are missing.
    """
    try:
        factory: AdapterFactory = find_adapter(name).load()
    except ImportError as error:
        raise ConfigError(
            f"--source {name}: {error}; install it with `pip install 'drainfsm[{name}]'`"
        ) from error
    return factory(context)
