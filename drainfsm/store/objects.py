"""A checkpoint store on S3, Google Cloud Storage or Azure, and on what speaks like them.

Put-if-absent is a conditional put. Credentials and endpoint come from the environment, as the
platform's own tools take them (``AWS_…``, ``GOOGLE_…``, ``AZURE_…``).
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from drainfsm.errors import ConfigError, SlotTakenError, StoreError, StoreUnreachableError
from drainfsm.store.base import TEMPORARY_PREFIX, Ranges, check_name, check_prefix, get_each
from drainfsm.store.pace import ANSWER_S_MAX, StorePace
from drainfsm.store.streams import (
    PART_BYTES,
    RANGE_BYTES,
    READ_BYTES,
    UPLOAD_BYTES,
    ObjectRanges,
    RangeReader,
    Upload,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

CONTROL_RETRY_S = 5
"""Small objects: retried this long inside one call. Callers settle what stays ambiguous."""

DATA_RETRY_S = 120
"""Checkpoint data: a throttling store is waited out; the coordinator gives up sooner if it must."""

DATA_TRIES = 3
"""A request that gets no answer at all is sent this often."""

CONNECT_S = 5
CONTROL_ANSWER_S = 10


@contextmanager
def _answering(action: str, name: str, url: str) -> Iterator[None]:
    """Errors of the service as one error of ours. A missing object stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise StoreUnreachableError(
            f"cannot {action} {name} in {url}: access denied. Check the credentials, and that "
            "they may list: without it a missing object looks like a forbidden one"
        ) from error
    except (BaseError, OSError) as error:
        text = " ".join(str(error).split())
        raise StoreUnreachableError(f"cannot {action} {name} in {url}: {text[:300]}") from error


class ObjectsStore:
    """Objects below one prefix of a bucket. See ``ObjectStore`` for what is promised."""

    def __init__(self, url: str) -> None:
        """Raises:
        ConfigError: the client rejects the URL or the environment.
        """
        self.url = url.rstrip("/")
        self._control = _client(self.url, CONTROL_ANSWER_S, CONTROL_RETRY_S)
        self._patient: dict[int, Backend] = {}
        """For checkpoint data, by how long they wait for an answer."""

        self._writing = StorePace(part_bytes=PART_BYTES, flight_bytes=UPLOAD_BYTES)
        self._reading = StorePace(part_bytes=RANGE_BYTES, flight_bytes=READ_BYTES)
        self._making = threading.Lock()
        """A client takes milliseconds: it reads all certificates that the machine trusts."""

        self._deletes_many = True

    def create(self, *, parents: bool = False) -> None:
        """Buckets are created by their owner, and a prefix needs no creation."""

    def put_if_absent(self, name: str, data: bytes) -> None:
        check_name(name)
        with _answering("create", name, self.url):
            try:
                obstore.put(self._control, name, data, mode="create")
            except (AlreadyExistsError, PreconditionError) as error:
                raise SlotTakenError(f"{self.url}/{name} is there already") from error

    def put(self, name: str, data: bytes) -> None:
        check_name(name)
        with _answering("write", name, self.url):
            obstore.put(self._control, name, data, use_multipart=False)

    def get(self, name: str) -> bytes | None:
        check_name(name)
        with _answering("read", name, self.url):
            try:
                return bytes(obstore.get(self._control, name).bytes())
            except FileNotFoundError:
                return None

    def get_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return get_each(self.get, names)

    def list(self, prefix: str) -> dict[str, int]:
        check_prefix(prefix)
        with _answering("list", prefix, self.url):
            return dict(sorted(self._below(prefix)))

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        check_prefix(prefix)
        offset = f"{prefix}{after}" if after else None
        with _answering("list", prefix, self.url):
            found = [name for name, _ in self._below(prefix, offset=offset)]
        return sorted(name for name in found if "/" not in name)

    def delete(self, name: str) -> None:
        check_name(name)
        with _answering("delete", name, self.url):
            try:
                obstore.delete(self._one_by_one, name)
            except FileNotFoundError:
                return

    def delete_tree(self, prefix: str) -> None:
        if not check_prefix(prefix):
            raise StoreError("refusing to delete the whole store: give a prefix")
        with _answering("delete", prefix, self.url):
            names = [f"{prefix}{name}" for name, _ in self._below(prefix)]
            if names:
                self._delete_each(names)

    def _delete_each(self, names: Sequence[str]) -> None:
        if self._deletes_many:
            try:
                obstore.delete(self._control, names)
            except BaseError:
                self._deletes_many = False
            else:
                return
        obstore.delete(self._one_by_one, names)

    def create_tree(self, prefix: str) -> None:
        check_prefix(prefix)
        with _answering("list", prefix, self.url):
            if next(self._below(prefix), None) is not None:
                raise SlotTakenError(f"{self.url}/{prefix} is there already; a tree is used once")

    @contextmanager
    def writer(self, name: str, *, size_bytes: int = 0) -> Iterator[BinaryIO]:
        check_name(name)
        upload = Upload(self._connect, name, self._writing, size_bytes)
        with _answering("write", name, self.url):
            try:
                yield cast(BinaryIO, upload)
                upload.finish()
            except BaseException as error:
                upload.abandon(error)
                raise

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        check_name(name)
        with _answering("read", name, self.url):
            backend = self._connect(ANSWER_S_MAX)
            size_bytes = obstore.head(backend, name)["size"]
            yield cast(BinaryIO, io.BufferedReader(RangeReader(backend, name, size_bytes)))

    @contextmanager
    def ranges(self, name: str, *, size_bytes: int = 0) -> Iterator[Ranges]:
        check_name(name)
        with _answering("read", name, self.url):
            size_bytes = size_bytes or obstore.head(self._control, name)["size"]
            with closing(ObjectRanges(self._connect, name, size_bytes, self._reading)) as ranges:
                yield ranges

    def _connect(self, answer_s: int) -> Backend:
        """Times are rounded up to powers of two: a client has connections of its own."""
        rounded = min(ANSWER_S_MAX, 1 << (answer_s - 1).bit_length())
        with self._making:
            if rounded not in self._patient:
                retry_s = max(DATA_RETRY_S, DATA_TRIES * rounded)
                self._patient[rounded] = _client(self.url, rounded, retry_s)
            return self._patient[rounded]

    @cached_property
    def _one_by_one(self) -> Backend:
        """Not every server that speaks like S3 knows the request that deletes many objects."""
        return _client(self.url, CONTROL_ANSWER_S, CONTROL_RETRY_S, disable_bulk_delete=True)

    def _below(self, prefix: str, *, offset: str | None = None) -> Iterator[tuple[str, int]]:
        stream = obstore.list(self._control, prefix=prefix or None, offset=offset)
        for page in cast("Iterator[Sequence[Any]]", stream):
            for found in page:
                name = str(found["path"]).removeprefix(prefix)
                if not name.rpartition("/")[2].startswith(TEMPORARY_PREFIX):
                    yield name, int(found["size"])


def _client(url: str, answer_s: int, retry_s: int, **s3_options: bool) -> Backend:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    options: dict[str, Any] = {
        "connect_timeout": f"{CONNECT_S}s",
        "timeout": f"{answer_s}s",
        "allow_http": endpoint.startswith("http://"),
    }
    backoff = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5)}
    retry: dict[str, Any] = {"retry_timeout": timedelta(seconds=retry_s), "backoff": backoff}
    of_scheme: dict[str, Any] = s3_options if url.startswith("s3://") else {}
    try:
        return from_url(
            url, client_options=cast(Any, options), retry_config=cast(Any, retry), **of_scheme
        )
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigError(f"store {url!r}: {error}") from error
