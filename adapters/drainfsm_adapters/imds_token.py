"""Session tokens of an instance metadata service (IMDSv2 of AWS; Alibaba has the same).

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
"""

from __future__ import annotations

import asyncio

from drainfsm_adapters.lenient import whole_number
from drainfsm_adapters.metadata import MetadataClient, NoAnswerError, Reply, TimedOutError

TTL_S = 3_600
REFRESH_EARLY_S = 60
PATH = "/latest/api/token"


class TokenSession:
    """GETs with a session token that is fetched once for all readers and renewed in time."""

    def __init__(self, client: MetadataClient, *, header: str, required: bool) -> None:
        self._client = client
        self._header = header
        self._required = required
        self._token = ""
        self._genuine = False
        """The token came with its lifetime, which imitations lack."""

        self._renew_at_unix_ms = 0
        self._lock = asyncio.Lock()
        self._renewals = 0
        self._problem = ""

    async def get(self, path: str) -> Reply:
        """A 401 is answered once with a new token.

        Raises:
            NoAnswerError: no token, no answer, or the new token is refused, too.
        """
        token = await self._fresh_token()
        reply = await self._client.request("GET", path, headers=self._headers(token))
        if reply.status == 401:
            self._drop(token)
            token = await self._fresh_token()
            reply = await self._client.request("GET", path, headers=self._headers(token))
        if reply.status == 401:
            raise NoAnswerError("401, with a new token, too")
        return reply

    async def check(self) -> None:
        """Check that there is a service that gives out tokens.

        Raises:
            NoAnswerError: there is none; says what is wrong.
        """
        await self._fresh_token()
        if not self._genuine:
            raise NoAnswerError("no token: answered 200 without its lifetime")

    def _headers(self, token: str) -> dict[str, str]:
        return {self._header: token} if token else {}

    def _drop(self, token: str) -> None:
        if self._token == token:  # else another reader has renewed it already
            self._renew_at_unix_ms = 0

    async def _fresh_token(self) -> str:
        before = self._renewals
        async with self._lock:
            if self._client.now_unix_ms() < self._renew_at_unix_ms:
                return self._token
            if self._renewals > before:  # another reader has tried meanwhile, and failed
                raise NoAnswerError(self._problem)
            try:
                await self._renew()
            except NoAnswerError as error:
                self._problem = str(error)
                raise
            finally:
                self._renewals += 1
            return self._token

    async def _renew(self) -> None:
        ttl_header = f"{self._header}-ttl-seconds"
        asked_unix_ms = self._client.now_unix_ms()
        try:
            reply = await self._client.request("PUT", PATH, headers={ttl_header: str(TTL_S)})
        except TimedOutError as error:
            raise NoAnswerError(await self._diagnosis(error)) from error
        if reply.status == 200 and (token := reply.text):
            stated = reply.headers.get(ttl_header.lower())
            self._genuine = stated is not None
            ttl_s = min(whole_number(stated) or TTL_S, TTL_S)  # never longer than was asked for
            self._token = token
        elif not self._required and reply.status in (404, 405):
            ttl_s, self._token = TTL_S, ""  # a service without tokens
        else:
            hint = " (HttpEndpoint disabled?)" if reply.status == 403 else ""
            raise NoAnswerError(f"no token: answered {reply.status}{hint}")
        early_s = min(REFRESH_EARLY_S, ttl_s // 2)
        self._renew_at_unix_ms = asked_unix_ms + (ttl_s - early_s) * 1_000

    async def _diagnosis(self, error: TimedOutError) -> str:
        """Only the answer to a PUT has a hop limit; if a GET is answered, that is the reason."""
        try:
            probe = await self._client.request("GET", "/latest/meta-data/", headers={})
        except NoAnswerError:
            return f"{error}, to nothing: no metadata service is reachable from here"
        return (
            f"{error} to the token request, but GET is answered {probe.status}: the answer is lost "
            "on its way into a container; set HttpPutResponseHopLimit to 2 or use the host network"
        )
