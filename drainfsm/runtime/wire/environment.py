"""The environment variables by which the processes of a job find their agent."""

from __future__ import annotations

SOCKET_VARIABLE = "DRAINFSM_SOCKET"
EPOCH_VARIABLE = "DRAINFSM_EPOCH"
SIGNALS_VARIABLE = "DRAINFSM_SIGNALS"
"""Names of the signals that the agent takes as a notice, with commas."""
OUTSIDE_VARIABLE = "DRAINFSM_OUTSIDE"
"""Variables that say which rank a process is, as the agent itself has them: not the job's."""
