"""What people see of a log, as a library: states as they come, replays, and reports.

    projection.read(record, sequence=sequence)      # of one reader, for all viewers
    replays = replay_job(by_attempt(records))
    made = report_jobs(by_attempt(records))

``drainfsm.log`` has the records. Nothing here writes, or asks anybody for anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainfsm.lazy import lazy_names

__all__ = [
    "AttemptLog",
    "AttemptProjection",
    "AttemptReplay",
    "AttemptReport",
    "JobProjection",
    "Line",
    "Projection",
    "Report",
    "Status",
    "Totals",
    "by_attempt",
    "replay_job",
    "report_jobs",
]

if TYPE_CHECKING:
    from drainfsm.views.attempts import AttemptReport
    from drainfsm.views.history import by_attempt
    from drainfsm.views.projections import AttemptProjection, JobProjection, Projection
    from drainfsm.views.replay import AttemptLog, AttemptReplay, Line, replay_job
    from drainfsm.views.report import Report, report_jobs
    from drainfsm.views.status import Status
    from drainfsm.views.tally import Totals
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "AttemptLog": "drainfsm.views.replay",
            "AttemptProjection": "drainfsm.views.projections",
            "AttemptReplay": "drainfsm.views.replay",
            "AttemptReport": "drainfsm.views.attempts",
            "JobProjection": "drainfsm.views.projections",
            "Line": "drainfsm.views.replay",
            "Projection": "drainfsm.views.projections",
            "Report": "drainfsm.views.report",
            "Status": "drainfsm.views.status",
            "Totals": "drainfsm.views.tally",
            "by_attempt": "drainfsm.views.history",
            "replay_job": "drainfsm.views.replay",
            "report_jobs": "drainfsm.views.report",
        },
    )
