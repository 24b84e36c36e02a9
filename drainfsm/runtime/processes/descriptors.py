"""How many files this process may have open: node 0 has a connection from every node."""

from __future__ import annotations

import resource

from drainfsm.errors import ConfigError

OWN_COUNT = 256
"""Besides the nodes: journal, ranks, adapters, broker, and strangers at the door."""

_inherited: list[int] = []


def allow_descriptors(count: int) -> None:
    """Raise this process's own limit, within what the system grants.

    Raises:
        ConfigError: it grants less.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _inherited.append(soft)
    if soft != resource.RLIM_INFINITY and soft < count:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"nnodes: node 0 needs {count} open files, and at most {hard} are granted here: "
                "raise `ulimit -Hn` (LimitNOFILE= of a systemd unit)"
            ) from error


def inherited_descriptors() -> int:
    """The limit that this process was started with: what its job gets."""
    return _inherited[0] if _inherited else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
