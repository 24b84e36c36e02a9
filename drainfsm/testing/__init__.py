"""For tests of programs that embed drainfsm, and of adapters.

Also in this package: ``strategies`` (inputs for Hypothesis) and ``metadata`` (servers that speak
the metadata protocols of the clouds).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainfsm.lazy import lazy_names

__all__ = [
    "AmbiguousStore",
    "MemoryStore",
    "PutAnswer",
    "RecordingSink",
    "Scenario",
    "broken_rules",
    "check_adapter",
    "context_for",
    "watching",
]

if TYPE_CHECKING:
    from drainfsm.core.rules import broken_rules
    from drainfsm.testing.adapter_contract import check_adapter, context_for
    from drainfsm.testing.notice_sink import RecordingSink, watching
    from drainfsm.testing.scenario import Scenario
    from drainfsm.testing.stores import AmbiguousStore, MemoryStore, PutAnswer
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "AmbiguousStore": "drainfsm.testing.stores",
            "MemoryStore": "drainfsm.testing.stores",
            "PutAnswer": "drainfsm.testing.stores",
            "RecordingSink": "drainfsm.testing.notice_sink",
            "Scenario": "drainfsm.testing.scenario",
            "broken_rules": "drainfsm.core.rules",
            "check_adapter": "drainfsm.testing.adapter_contract",
            "context_for": "drainfsm.testing.adapter_contract",
            "watching": "drainfsm.testing.notice_sink",
        },
    )
