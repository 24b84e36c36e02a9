"""Records that are signed by the nkey which an agent shows to the NATS server: whoever can write
the stream anew, but does not have that key, cannot write a log that passes for the agent's."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Literal

from msgspec import UnsetType
from msgspec.structs import replace

from drainfsm.core.codec import encode
from drainfsm.core.records import Record
from drainfsm.errors import ConfigError
from drainfsm.log.server import NatsServer, nkeys_of, public_nkey, url_base64

if TYPE_CHECKING:
    from nkeys import KeyPair  # type: ignore[import-untyped]

MARK = b"\xff drainfsm record\n"
"""Goes before what is signed. The same key signs a text of the server's choice at every connect;
no text begins so, so no server gets a record signed."""

_SIGNED = re.compile(rb',"signed":"([A-Z2-7]{56})\.([A-Za-z0-9_-]{86})"\}')

Verdict = Literal["good", "unsigned", "wrong_key", "changed"]


class Signer:
    def __init__(self, key: KeyPair) -> None:
        self._key = key
        self.public_key = public_nkey(key)

    def signed(self, record: Record) -> Record:
        signature = self._key.sign(MARK + encode(record))
        return replace(record, signed=f"{self.public_key}.{url_base64(signature)}")


def signer_of(server: NatsServer) -> Signer | None:
    """None: the server is shown no nkey.

    Raises:
        ConfigError: its file cannot be read, or does not hold what it should.
    """
    key = server.key_pair()
    return None if key is None else Signer(key)


class SignersKnown:
    """Public nkeys of those who may have written a log."""

    def __init__(self) -> None:
        """Raises: ConfigError: nkeys is not installed."""
        self._nkeys = nkeys_of("--signer")
        self._raw: dict[str, bytes] = {}

    def add(self, key: str, *, where: str) -> None:
        """``where``: it was given.

        Raises:
            ConfigError: it is none. The text does not show it: it may be a seed.
        """
        try:
            data = base64.b32decode(key)
        except ValueError:
            data = b""
        checked = self._nkeys.crc16(data[:-2]).to_bytes(2, "little") == data[-2:]
        if len(data) != 35 or data[0] != self._nkeys.PREFIX_BYTE_USER or not checked:
            raise ConfigError(f"{where}: is no public nkey of a user (U…), nor a file of them")
        self._raw[key] = data[1:-2]

    def verdict(self, line: bytes, signed: str | UnsetType) -> Verdict:
        """``line``: a record as stored; ``signed``: what it holds in that field."""
        if isinstance(signed, UnsetType):
            return "unsigned"
        found = _SIGNED.search(line, max(0, len(line) - len(signed) - 16))
        if found is None or found.end() != len(line):
            return "changed"
        raw = self._raw.get(found[1].decode())
        if raw is None:
            return "wrong_key"
        signature = base64.urlsafe_b64decode(found[2] + b"==")
        public = self._nkeys.nacl.signing.VerifyKey(raw)
        try:
            public.verify(MARK + line[: found.start()] + b"}", signature)
        except self._nkeys.nacl.exceptions.BadSignatureError:
            return "changed"
        return "good"
