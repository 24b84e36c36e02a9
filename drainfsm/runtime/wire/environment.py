"""The environment variables by which the processes of a job find their agent."""

from __future__ import annotations

SOCKET_VARIABLE = "DRAINFSM_SOCKET"
EPOCH_VARIABLE = "DRAINFSM_EPOCH"
