"""Which NATS server, and the credentials for it. Secrets are named by the files that hold them."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from drainfsm.errors import ConfigError

if TYPE_CHECKING:
    from nkeys import KeyPair  # type: ignore[import-untyped]

INBOX = "_INBOX"
READERS_INBOX = f"{INBOX}.drainfsm.reader"
NO_TLS = "the server offers no TLS, which this client requires"
_JWT = re.compile(r"BEGIN NATS USER JWT-+\s+(\S+)\s")
_SEED = re.compile(r"BEGIN USER NKEY SEED-+\s+(\S+)\s")


class NatsServer(msgspec.Struct, frozen=True, kw_only=True):
    """Files are read at every connect, so that a rotated secret counts from then on."""

    url: str
    """Of one server or, with commas, of several of a cluster. A password or a token in it is fine
    if nobody else can read it."""

    user: str = ""
    password_file: str = ""
    token_file: str = ""
    nkey: str = ""
    """File with the user's seed."""

    creds: str = ""
    """File with the user's JWT and seed, as ``nsc`` and ``drainfsm auth init`` write it."""

    tlscert: str = ""
    tlskey: str = ""
    tlsca: str = ""
    """Files. With one of them, or ``tls://`` in the URL, a server without TLS is refused."""

    inbox_prefix: str = ""
    """Prefix of the subjects for answers; empty: ``_INBOX``."""

    def __repr__(self) -> str:
        return f"NatsServer({public(self)})"

    def check(self) -> None:
        """Check the files before anything depends on them.

        Raises:
            ConfigError: says which option, and why.
        """
        for option, problem in self._problems():
            raise ConfigError(f"nats_{option}: {problem}")
        self.shown("")
        if self.tlsca or self.tlscert:
            self.tls()

    def _problems(self) -> list[tuple[str, str]]:
        in_url = [part for part in self.urls if part.username is not None]
        given = {
            "user": self.user,
            "token_file": self.token_file,
            "nkey": self.nkey,
            "creds": self.creds,
        }
        ways = [name for name, value in given.items() if value]
        problems = []
        if len(ways) > 1:
            problems.append((ways[1], f"is one way too many, besides nats_{ways[0]}: choose one"))
        if ways and in_url:
            problems.append((ways[0], "is one way too many: the URL holds a user or a token, too"))
        if bool(self.user) != bool(self.password_file):
            problems.append(("user", "belongs together with nats_password_file; one is missing"))
        if bool(self.tlscert) != bool(self.tlskey):
            problems.append(("tlscert", "belongs together with nats_tlskey; one is missing"))
        if self.inbox_prefix and not re.fullmatch(r"[\w$-]+(\.[\w$-]+)*", self.inbox_prefix):
            problems.append(("inbox_prefix", f"{self.inbox_prefix!r} is not a subject"))
        return problems

    @property
    def urls(self) -> list[SplitResult]:
        return [urlsplit(one if "://" in one else f"nats://{one}") for one in self.url.split(",")]

    @property
    def private(self) -> bool:
        """Whether a server that offers no TLS is refused."""
        files = self.tlscert or self.tlsca
        return bool(files) or any(part.scheme == "tls" for part in self.urls)

    def tls(self) -> ssl.SSLContext:
        """Raises: ConfigError: a file cannot be read, or is not a certificate or key."""
        try:
            context = ssl.create_default_context(cafile=self.tlsca or None)
            if self.tlscert:
                context.load_cert_chain(self.tlscert, self.tlskey)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"nats_tlsca, nats_tlscert or nats_tlskey: {error}") from error
        return context

    def shown(self, nonce: str) -> dict[str, str]:
        """The fields of CONNECT that show who this client is; ``nonce`` is the server's.

        Raises:
            ConfigError: a file cannot be read, or does not hold what it should.
        """
        if self.creds:
            jwt, seed = self._jwt_and_seed()
            key = _key_pair("creds", self.creds, seed)
            return {"jwt": jwt, "sig": _answer(key, nonce)}
        if self.nkey:
            key = _key_pair("nkey", self.nkey, _read("nkey", self.nkey))
            return {"nkey": public_nkey(key), "sig": _answer(key, nonce)}
        if self.user:
            return {"user": self.user, "pass": _read("password_file", self.password_file)}
        if self.token_file:
            return {"auth_token": _read("token_file", self.token_file)}
        first = self.urls[0]  # good for servers of the cluster that are found later
        if first.username is None:
            return {}
        if first.password is None:
            return {"auth_token": unquote(first.username)}
        return {"user": unquote(first.username), "pass": unquote(first.password)}

    def key_pair(self) -> KeyPair | None:
        """The user's nkey; None: it shows none.

        Raises:
            ConfigError: its file cannot be read, or does not hold what it should.
        """
        if self.creds:
            return _key_pair("creds", self.creds, self._jwt_and_seed()[1])
        return _key_pair("nkey", self.nkey, _read("nkey", self.nkey)) if self.nkey else None

    def _jwt_and_seed(self) -> tuple[str, str]:
        text = _read("creds", self.creds)
        jwt, seed = _JWT.search(text), _SEED.search(text)
        if jwt is None or seed is None:
            raise ConfigError(f"nats_creds: {self.creds} holds no user JWT with its seed")
        return jwt[1], seed[1]


def server_of(options: Mapping[str, str], *, inbox_prefix: str) -> NatsServer:
    """From ``nats`` and ``nats_…``; ``inbox_prefix``: if none was given."""
    given = {key.removeprefix("nats_"): value for key, value in options.items() if key != "nats"}
    given["inbox_prefix"] = given["inbox_prefix"] or inbox_prefix
    return NatsServer(url=options["nats"], **given)


def agents_inbox(job_id: str) -> str:
    """Only the agents of the job need to hear what comes there."""
    return f"{INBOX}.drainfsm.agent.{job_id}"


def server_at(server: NatsServer | str) -> NatsServer:
    return NatsServer(url=server) if isinstance(server, str) else server


def public(server: NatsServer | str) -> str:
    """The URL without its password or token."""
    return re.sub(r"(^|//|,)[^/@,]*@", r"\1", server_at(server).url)


def nkeys_of(option: str) -> Any:
    """The library. Raises: ConfigError: it is not installed."""
    try:
        import nkeys
    except ImportError:
        raise ConfigError(f"{option} needs nkeys: run `pip install 'drainfsm[nkeys]'`") from None
    return nkeys


def _read(option: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"nats_{option}: {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"nats_{option}: {path} is not text") from error
    if not text:
        raise ConfigError(f"nats_{option}: {path} is empty")
    return text


def _key_pair(option: str, path: str, seed: str) -> KeyPair:
    nkeys = nkeys_of(f"nats_{option}")
    try:
        found: KeyPair = nkeys.from_seed(seed.encode())
        public_nkey(found)
    except (ValueError, nkeys.NkeysError) as error:
        raise ConfigError(f"nats_{option}: {path} holds no nkey seed") from error
    return found


def _answer(key: KeyPair, nonce: str) -> str:
    return url_base64(key.sign(nonce.encode(errors="replace")))


def public_nkey(key: KeyPair) -> str:
    return bytes(key.public_key).decode()


def url_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
