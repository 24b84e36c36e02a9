"""Alibaba Cloud: termination of a preemptible ECS instance, five minutes ahead.

https://www.alibabacloud.com/help/en/ecs/use-cases/query-the-interruption-events-of-preemptible-
instances. Tested only against a server that answers as this page says, not against this cloud.
"""

from __future__ import annotations

import os

from drainfsm.adapter import AdapterContext
from drainfsm_adapters.imds_token import TokenSession
from drainfsm_adapters.metadata import MetadataClient, endpoint_of
from drainfsm_adapters.options import PollOptions, load_options
from drainfsm_adapters.polling import CloudAdapter
from drainfsm_adapters.termination_time import TerminationTime
from drainfsm_adapters.times import from_rfc3339

SOURCE = "alibaba"
ENDPOINT_VARIABLE = "DRAINFSM_ALIBABA_METADATA_ENDPOINT"
ADDRESS = "http://100.100.100.200"
TOKEN_HEADER = "X-aliyun-ecs-metadata-token"


def endpoint_text() -> str:
    return os.environ.get(ENDPOINT_VARIABLE) or ADDRESS


def adapter(context: AdapterContext) -> CloudAdapter:
    """The factory behind ``--source alibaba``.

    Raises:
        ConfigError: an option or environment variable is wrong.
    """
    options = load_options(PollOptions, context.options, source=SOURCE)
    client = MetadataClient(
        endpoint_of(endpoint_text(), option=ENDPOINT_VARIABLE),
        timeout_s=options.timeout_s,
        now_unix_ms=context.now_unix_ms,
    )
    session = TokenSession(client, header=TOKEN_HEADER, required=False)
    termination = TerminationTime(
        get=session.get, path="/latest/meta-data/instance/spot/termination-time", parse=from_rfc3339
    )
    return CloudAdapter(context, termination.platform(SOURCE, client, options))
