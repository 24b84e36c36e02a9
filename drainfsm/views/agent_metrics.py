"""``GET /metrics`` of an agent: a thread beside it that reads the attempt's journal at a scrape.

The agent knows nothing of it, and it nothing of the agent but the files of the state directory.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from prometheus_client import start_http_server

from drainfsm.log.journal import journal_path
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.paths import read_run_info
from drainfsm.views.journals import GrowingJournals
from drainfsm.views.metrics import registry
from drainfsm.views.projections import Projection

RETRY_S = 5.0
"""Between tries, while the address is taken (by the attempt before this one, say)."""

log = logging.getLogger("drainfsm.metrics")


class AgentMetrics:
    """Of the attempt that this process runs."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._journals = GrowingJournals(self._paths)

    def start(self) -> None:
        """Returns at once. An address that is taken is tried again and again."""
        threading.Thread(target=self._serve, name="drainfsm-metrics", daemon=True).start()

    def _serve(self) -> None:
        host, _, port = self._config.metrics.rpartition(":")
        made = registry(self.projection, clock=Clock().now_unix_ms)
        warned = False
        while True:
            try:
                start_http_server(int(port), addr=host.strip("[]"), registry=made)
            except OSError as error:
                if not warned:
                    log.warning("no metrics at %s yet: %s", self._config.metrics, error)
                warned = True
                time.sleep(RETRY_S)
            else:
                return

    def projection(self) -> Projection:
        self._journals.poll()
        return self._journals.projection

    def _paths(self) -> list[Path]:
        """None before the attempt has claimed the job: earlier ones are not its own."""
        config = self._config
        info = read_run_info(config.state_dir, config.job)
        if info is None or info.pid != os.getpid():
            return []
        return [journal_path(config.state_dir, job_id=config.job, epoch=info.epoch)]
