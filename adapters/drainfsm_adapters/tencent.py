"""Tencent Cloud: reclaim of a Spot instance, two minutes ahead, in the time of UTC+8.

https://www.tencentcloud.com/document/product/213/32487. Tested only against
a server that answers as this page says, not against this cloud.
"""

from __future__ import annotations

import os

from drainfsm.adapter import AdapterContext
from drainfsm_adapters.metadata import MetadataClient, Reply, endpoint_of
from drainfsm_adapters.options import PollOptions, load_options
from drainfsm_adapters.polling import CloudAdapter
from drainfsm_adapters.termination_time import TerminationTime
from drainfsm_adapters.times import from_utc8

SOURCE = "tencent"
ENDPOINT_VARIABLE = "DRAINFSM_TENCENT_METADATA_ENDPOINT"
ADDRESS = "http://metadata.tencentyun.com"


def endpoint_text() -> str:
    return os.environ.get(ENDPOINT_VARIABLE) or ADDRESS


def adapter(context: AdapterContext) -> CloudAdapter:
    """The factory behind ``--source tencent``.

    Raises:
        ConfigError: an option or environment variable is wrong.
    """
    options = load_options(PollOptions, context.options, source=SOURCE)
    client = MetadataClient(
        endpoint_of(endpoint_text(), option=ENDPOINT_VARIABLE),
        timeout_s=options.timeout_s,
        now_unix_ms=context.now_unix_ms,
    )

    async def get(path: str) -> Reply:
        return await client.request("GET", path, headers={})

    termination = TerminationTime(
        get=get, path="/latest/meta-data/spot/termination-time", parse=from_utc8
    )
    return CloudAdapter(context, termination.platform(SOURCE, client, options))
