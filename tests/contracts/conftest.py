"""One S3 server for all contract tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drainfsm_kit.s3 import environment, s3_server


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    with s3_server() as port, environment(port):
        yield port
