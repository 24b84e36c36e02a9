"""The event log, for readers: journals on this machine, and the shared JetStream stream.

    for record in read_journal(path): ...
    async for record in (await connect(url, timeout_s=10)).follow(job_id): ...

``drainfsm.log.events`` has the classes of what a record holds. ``connect`` needs nats-py,
everything else reads files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainfsm.lazy import lazy_names

__all__ = [
    "Connection",
    "Journal",
    "NatsServer",
    "Record",
    "Stored",
    "connect",
    "journals",
    "read_journal",
]

if TYPE_CHECKING:
    from drainfsm.core.records import Record
    from drainfsm.log.jetstream import Connection, Stored, connect
    from drainfsm.log.journal import Journal, journals, read_journal
    from drainfsm.log.server import NatsServer
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "Connection": "drainfsm.log.jetstream",
            "Journal": "drainfsm.log.journal",
            "NatsServer": "drainfsm.log.server",
            "Record": "drainfsm.core.records",
            "Stored": "drainfsm.log.jetstream",
            "connect": "drainfsm.log.jetstream",
            "journals": "drainfsm.log.journal",
            "read_journal": "drainfsm.log.journal",
        },
    )
