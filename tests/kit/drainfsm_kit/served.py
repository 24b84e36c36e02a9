"""Runs ``drainfsm serve`` for real."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

WAIT_S = 120.0


class Served:
    def __init__(
        self,
        *argv: str,
        variables: Mapping[str, str] | None = None,
        stderr: int | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """``before``: is called in the new process."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("DRAINFSM_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "drainfsm", "serve", *argv],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=own | dict(variables or {}),
            preexec_fn=before,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().rstrip("/")
        assert self.url, self.process.wait(WAIT_S)

    @property
    def address(self) -> str:
        return urlsplit(self.url).netloc

    def get(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Code, headers and body of one answer."""
        connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, told, answer.read().decode()

    @contextlib.contextmanager
    def events(self, query: str = "") -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
        """Server-sent events as they come: name and data."""
        connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request("GET", f"/events{query}")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            with contextlib.closing(answer):
                yield self._events(answer)

    @staticmethod
    def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
        name = ""
        for line in answer:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def served(
    *argv: str,
    variables: Mapping[str, str] | None = None,
    stderr: int | None = None,
    before: Callable[[], None] | None = None,
) -> Iterator[Served]:
    made = Served(*argv, variables=variables, stderr=stderr, before=before)
    try:
        yield made
    finally:
        made.stop()
