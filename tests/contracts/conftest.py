"""One server of each S3 implementation for all contract tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drainfsm_kit.s3 import environment, has_file_server, s3_file_server, s3_server


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture(scope="session")
def s3_file_port() -> Iterator[int]:
    if not has_file_server():
        pytest.skip("localbucket, a second S3 server, is not installed")
    with s3_file_server() as port:
        yield port


@pytest.fixture
def s3(s3_port: int) -> Iterator[int]:
    with environment(s3_port):
        yield s3_port


@pytest.fixture
def s3_files(s3_file_port: int) -> Iterator[int]:
    with environment(s3_file_port):
        yield s3_file_port
