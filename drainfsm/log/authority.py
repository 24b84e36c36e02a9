"""Who may do what with the log on a NATS server: keys, permissions, and the files that say so.

Two forms, for the same users: an operator with one account and a credentials file for each user,
which a server must be configured with once; or a block of users by nkey for a server's
configuration.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from drainfsm.core.records import subjects_of
from drainfsm.durable import write_synced
from drainfsm.errors import ConfigError
from drainfsm.log.server import (
    READERS_INBOX,
    NatsServer,
    agents_inbox,
    nkeys_of,
    public_nkey,
    url_base64,
)
from drainfsm.log.stream import STREAM, SUBJECTS

if TYPE_CHECKING:
    from nkeys import KeyPair  # type: ignore[import-untyped]

ACCOUNT = "DRAINFSM"
CONFIG = "nats-server.conf"
"""What the server's own configuration includes."""

ADMIN, READER = "admin", "reader"


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def agents_permissions(job_id: str) -> Permissions:
    """Publish and read the job's own subjects. A consumer's filter is in the subject of the request
    for it, where the server checks it. A direct read names its subject only in the body, and could
    send its answer into the subject of another job."""
    subject = subjects_of(job_id)
    return Permissions(
        publish=(
            subject,
            f"$JS.API.STREAM.INFO.{STREAM}",
            f"$JS.API.CONSUMER.CREATE.{STREAM}.*.{subject}",
        ),
        subscribe=(f"{agents_inbox(job_id)}.>",),
    )


READERS = Permissions(
    publish=(
        f"$JS.API.STREAM.INFO.{STREAM}",
        f"$JS.API.DIRECT.GET.{STREAM}",
        f"$JS.API.CONSUMER.CREATE.{STREAM}.*.{SUBJECTS}",
    ),
    subscribe=(f"{READERS_INBOX}.>",),
)
ADMINISTRATORS = Permissions(publish=(">",), subscribe=(">",))


class User(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    permissions: Permissions
    job: str = ""
    """Whose log it writes, and signs."""


def users_of(jobs: Sequence[str]) -> list[User]:
    return [
        User(name=ADMIN, permissions=ADMINISTRATORS),
        User(name=READER, permissions=READERS),
        *(User(name=f"agent-{job}", permissions=agents_permissions(job), job=job) for job in jobs),
    ]


def write_credentials(directory: Path, jobs: Sequence[str], *, issued_unix_s: int) -> list[Path]:
    """An operator, an account, and a credentials file for each user. Existing keys are used again,
    so that agents of more jobs can be added without a change at the server. Returns the new files.

    Raises:
        ConfigError: no nkeys, or a file there is not one of ours.
        OSError: the directory cannot be written.
    """
    nkeys = nkeys_of("auth init")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    new: list[Path] = []
    operator = _key(directory / "operator.nk", nkeys.PREFIX_BYTE_OPERATOR, new)
    system = _key(directory / "system.nk", nkeys.PREFIX_BYTE_ACCOUNT, new)
    account = _key(directory / "account.nk", nkeys.PREFIX_BYTE_ACCOUNT, new)
    for user in users_of(jobs):
        path = directory / f"{user.name}.creds"
        if not path.exists():
            seed = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
            key = nkeys.from_seed(seed)
            text = _credentials(account, key, user, issued_unix_s=issued_unix_s)
            write_synced(path, text.encode(), mode=0o600)
            new.append(path)
        if user.job:
            _publish(NatsServer(url="", creds=str(path)).key_pair(), directory, user, new)
    config = directory / CONFIG
    if not config.exists():
        tokens = _operator_config(
            operator, system=system, account=account, issued_unix_s=issued_unix_s
        )
        _replace(config, tokens)
        new.append(config)
    return new


def write_users(directory: Path, jobs: Sequence[str]) -> list[Path]:
    """A seed for each user, and the block for the server's configuration, with the users of earlier
    calls in it. Returns the files that are new, the block always.

    Raises:
        ConfigError: no nkeys, or a file there is not one of ours.
        OSError: the directory cannot be written.
    """
    nkeys = nkeys_of("auth init")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    earlier = {path.stem.removeprefix("agent-") for path in directory.glob("agent-*.nk")}
    new: list[Path] = []
    users = []
    for user in users_of(sorted({*earlier, *jobs})):
        key = _key(directory / f"{user.name}.nk", nkeys.PREFIX_BYTE_USER, new)
        if user.job:
            _publish(key, directory, user, new)
        allowed = msgspec.to_builtins(user.permissions)
        users.append({"nkey": public_nkey(key), "permissions": allowed})
    config = directory / CONFIG
    block = {"accounts": {ACCOUNT: {"jetstream": "enabled", "users": users}}}
    _replace(config, _block(block))
    return [*new, config]


def _replace(path: Path, text: str) -> None:
    """By a file that its owner alone may write, whatever the umask: who may do what is in it."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o644)
    fresh.write_text(text)
    fresh.replace(path)


def _key(path: Path, prefix: int, new: list[Path]) -> KeyPair:
    """The existing one, or a new one."""
    nkeys = nkeys_of("auth init")
    if not path.exists():
        seed = nkeys.encode_seed(secrets.token_bytes(32), prefix)
        write_synced(path, seed + b"\n", mode=0o600)
        new.append(path)
    seed = path.read_bytes().strip()
    try:
        if nkeys.decode_seed(seed)[0] == prefix:
            return nkeys.from_seed(seed)
    except nkeys.NkeysError:
        pass
    raise ConfigError(f"{path} is not the kind of key that belongs there: use another directory")


def _publish(key: KeyPair | None, directory: Path, user: User, new: list[Path]) -> None:
    """For ``drainfsm verify``. Keys that the job's agents had before stay: they signed, too."""
    assert key is not None
    path = directory / f"{user.name}.pub"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    name = public_nkey(key)
    if name not in before.split():
        _replace(path, f"{before}{name}\n")
        new.append(path)


# --- JSON web tokens of NATS --------------------------------------------------------------------

_TRAFFIC = ("subs", "data", "payload", "imports", "exports", "conn", "leaf")
_STREAMS = ("mem_storage", "disk_storage", "streams", "consumer")
_UNLIMITED = dict.fromkeys((*_TRAFFIC, *_STREAMS), -1) | {"wildcards": True}
_NO_STREAMS = _UNLIMITED | dict.fromkeys(_STREAMS, 0)


def _token(
    issuer: KeyPair, *, subject: str, name: str, claims: dict[str, Any], issued_unix_s: int
) -> str:
    """Signed by the issuer: who ``subject`` is, and what it may. It never expires."""
    body: dict[str, Any] = {
        "iat": issued_unix_s,
        "iss": public_nkey(issuer),
        "name": name,
        "sub": subject,
        "nats": claims | {"version": 2},
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    head = _base64({"typ": "JWT", "alg": "ed25519-nkey"})
    signed = f"{head}.{_base64(body)}"
    return f"{signed}.{url_base64(issuer.sign(signed.encode()))}"


def _base64(value: dict[str, Any]) -> str:
    return url_base64(json.dumps(value, separators=(",", ":")).encode())


def _credentials(account: KeyPair, key: KeyPair, user: User, *, issued_unix_s: int) -> str:
    allowed = user.permissions
    claims = {
        "type": "user",
        "pub": {"allow": allowed.publish},
        "sub": {"allow": allowed.subscribe},
        **dict.fromkeys(("subs", "data", "payload"), -1),
    }
    token = _token(
        account,
        subject=public_nkey(key),
        name=user.name,
        claims=claims,
        issued_unix_s=issued_unix_s,
    )
    seed = bytes(key.seed).decode()
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def _operator_config(
    operator: KeyPair, *, system: KeyPair, account: KeyPair, issued_unix_s: int
) -> str:
    def token(key: KeyPair, name: str, claims: dict[str, Any]) -> str:
        return _token(
            operator,
            subject=public_nkey(key),
            name=name,
            claims=claims,
            issued_unix_s=issued_unix_s,
        )

    def account_token(key: KeyPair, name: str) -> str:
        limits = _UNLIMITED if name == ACCOUNT else _NO_STREAMS
        return token(key, name, {"type": "account", "limits": limits})

    own = {"type": "operator", "system_account": public_nkey(system)}
    return _block(
        {
            "operator": token(operator, "drainfsm", own),
            "system_account": public_nkey(system),
            "resolver": "MEMORY",
            "resolver_preload": {
                public_nkey(system): account_token(system, "SYS"),
                public_nkey(account): account_token(account, ACCOUNT),
            },
        }
    )


def _block(values: dict[str, Any]) -> str:
    """For ``include``: JSON without its outer braces is what a server reads."""
    lines = (f"{name}: {json.dumps(value, indent=1)}" for name, value in values.items())
    return os.linesep.join(lines) + "\n"
