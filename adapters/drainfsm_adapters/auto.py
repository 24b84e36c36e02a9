"""``--source auto``: asks every cloud's metadata service at once, and takes the one that answers.

Bounded: without any cloud it gives up after ``PROBE_S``, and training has not waited for it. That
is reported, and tried again, ever more rarely: a service may come up late.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import msgspec

from drainfsm.adapter import AdapterContext, Departure, NoticeSink, NoticeSource, Requeuer
from drainfsm.errors import ConfigError
from drainfsm_adapters import alibaba, aws, azure, gcp, tencent
from drainfsm_adapters.imds_token import TokenSession
from drainfsm_adapters.metadata import MetadataClient, NoAnswerError, endpoint_of

SOURCE = "auto"
PROBE_S = 2.0
RETRY_S = 1.0
"""Before the clouds are asked again; doubles up to ``RETRY_S_MAX``: one lost call must not leave
the agent deaf for long."""

RETRY_S_MAX = 60.0

PROBE_S_MAX = 16.0
"""A service that is slow is found at the second or third try: each may take twice as long."""


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """One try."""

    now_unix_ms: Callable[[], int]
    timeout_s: float = PROBE_S

    def client(self, text: str, option: str, *, host_header: str = "") -> MetadataClient:
        endpoint = endpoint_of(text, option=option, host_header=host_header)
        return MetadataClient(endpoint, timeout_s=self.timeout_s, now_unix_ms=self.now_unix_ms)


Probe = Callable[[Asking], Awaitable[None]]
"""Returns if this is the cloud, and raises ``NoAnswerError`` if it is not."""


async def probe_aws(asking: Asking) -> None:
    """A token: other clouds imitate the rest of the service, but not that."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise NoAnswerError("AWS_EC2_METADATA_DISABLED=true")
    client = asking.client(aws.endpoint_text(), aws.ENDPOINT_VARIABLE)
    await TokenSession(client, header=aws.TOKEN_HEADER, required=True).check()


async def probe_gcp(asking: Asking) -> None:
    """The header that says that this is Google's."""
    client = asking.client(gcp.endpoint_text(), gcp.HOST_VARIABLE, host_header=gcp.HOST_NAME)
    reply = await gcp.fetch(client, f"{gcp.ROOT}/id")
    if reply.status != 200:
        raise NoAnswerError(f"answered {reply.status}")


async def probe_azure(asking: Asking) -> None:
    """Not the events themselves: their first call takes minutes."""
    client = asking.client(azure.endpoint_text(), azure.ENDPOINT_VARIABLE)
    reply = await client.request("GET", azure.NAME_PATH, headers=azure.HEADERS)
    if reply.status != 200:
        raise NoAnswerError(f"answered {reply.status}")


async def probe_alibaba(asking: Asking) -> None:
    """An address that no other cloud uses."""
    client = asking.client(alibaba.endpoint_text(), alibaba.ENDPOINT_VARIABLE)
    reply = await client.request("GET", "/latest/meta-data/instance-id", headers={})
    if reply.status not in (200, 403):  # 403: it wants a token
        raise NoAnswerError(f"answered {reply.status}")


async def probe_tencent(asking: Asking) -> None:
    """A name that no other cloud resolves."""
    client = asking.client(tencent.endpoint_text(), tencent.ENDPOINT_VARIABLE)
    reply = await client.request("GET", "/latest/meta-data/instance-id", headers={})
    if reply.status != 200:
        raise NoAnswerError(f"answered {reply.status}")


PROBES: dict[str, Probe] = {
    "aws": probe_aws,
    "gcp": probe_gcp,
    "azure": probe_azure,
    "alibaba": probe_alibaba,
    "tencent": probe_tencent,
}
"""In order of precedence, if two answer."""

FACTORIES: dict[str, Callable[[AdapterContext], NoticeSource]] = {
    "aws": aws.adapter,
    "gcp": gcp.adapter,
    "azure": azure.adapter,
    "alibaba": alibaba.adapter,
    "tencent": tencent.adapter,
}


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    cloud: str
    """Empty: none answered."""

    detail: str
    """What each of the others said."""


async def detect(now_unix_ms: Callable[[], int], *, timeout_s: float = PROBE_S) -> Detected:
    """Which cloud this is, within ``timeout_s`` and a little."""
    asking = Asking(now_unix_ms=now_unix_ms, timeout_s=timeout_s)
    answers = await asyncio.gather(
        *(probe(asking) for probe in PROBES.values()), return_exceptions=True
    )
    said: list[str] = []
    for cloud, answer in zip(PROBES, answers, strict=True):
        if answer is None:
            return Detected(cloud=cloud, detail="; ".join(said))
        if not isinstance(answer, NoAnswerError):
            raise answer
        said.append(f"{cloud}: {answer}")
    return Detected(cloud="", detail="; ".join(said))


def adapter(context: AdapterContext) -> AutoAdapter:
    """The factory behind ``--source auto``.

    Raises:
        ConfigError: an option, or an endpoint in the environment, is wrong, for any of the clouds.
    """
    for text, option in (
        (aws.endpoint_text(), aws.ENDPOINT_VARIABLE),
        (gcp.endpoint_text(), gcp.HOST_VARIABLE),
        (azure.endpoint_text(), azure.ENDPOINT_VARIABLE),
        (alibaba.endpoint_text(), alibaba.ENDPOINT_VARIABLE),
        (tencent.endpoint_text(), tencent.ENDPOINT_VARIABLE),
    ):
        endpoint_of(text, option=option)
    for key in context.options:
        cloud, _, option = key.partition("_")
        if cloud not in FACTORIES or not option:
            raise ConfigError(
                f"[adapters.auto] {key}: write the options of a cloud as CLOUD_KEY, say aws_poll_s"
            )
        build(cloud, context)
    return AutoAdapter(context)


def build(cloud: str, context: AdapterContext) -> NoticeSource:
    """The cloud's own adapter, with its own options."""
    prefix = f"{cloud}_"
    options = {
        key.removeprefix(prefix): value
        for key, value in context.options.items()
        if key.startswith(prefix)
    }
    return FACTORIES[cloud](msgspec.structs.replace(context, options=options))


class AutoAdapter:
    """Becomes the adapter of the cloud that it finds."""

    takes_machine = True
    """On some."""

    def __init__(self, context: AdapterContext) -> None:
        self._context = context
        self._found: NoticeSource | None = None

    async def watch(self, sink: NoticeSink) -> None:
        """Hear notices until cancelled."""
        now_unix_ms = self._context.now_unix_ms
        began = now_unix_ms()
        reported = ""
        pause_s, timeout_s = RETRY_S, PROBE_S
        while not (detected := await detect(now_unix_ms, timeout_s=timeout_s)).cloud:
            if detected.detail != reported:
                reported = detected.detail
                sink.unknown(
                    source=SOURCE,
                    since_unix_ms=began,
                    detail=f"no metadata service answers, so no notice can be heard ({reported})",
                )
            await asyncio.sleep(pause_s)
            pause_s, timeout_s = min(RETRY_S_MAX, 2 * pause_s), min(PROBE_S_MAX, 2 * timeout_s)
        if reported:
            sink.recovered(source=SOURCE)
        self._found = build(detected.cloud, self._context)
        await self._found.watch(sink)

    async def left(self, departure: Departure) -> str:
        return await self._found.left(departure) if isinstance(self._found, Requeuer) else ""
