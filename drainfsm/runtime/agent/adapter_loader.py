"""Finds adapters by their entry point and loads them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from drainfsm.adapter import Adapter, AdapterContext, AdapterFactory
from drainfsm.errors import ConfigError, DrainfsmError

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
        ConfigError: no such adapter is installed, its own dependencies are missing, it refuses its
            options, or it fails.
    """
    point = find_adapter(name)
    try:
        factory: AdapterFactory = point.load()
    except ImportError as error:
        raise ConfigError(
            f"--source {name}: {error}; install it with `pip install 'drainfsm[{name}]'`"
        ) from error
    except Exception as error:
        raise _broken(point, error) from error
    try:
        return factory(context)
    except DrainfsmError:
        raise
    except Exception as error:
        raise _broken(point, error) from error


def _broken(point: EntryPoint, error: Exception) -> ConfigError:
    return ConfigError(
        f"--source {point.name}: the adapter {point.value} failed before the job was started: "
        f"{type(error).__name__}: {error}"
    )
