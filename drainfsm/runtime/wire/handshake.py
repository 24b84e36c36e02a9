"""The job token: both sides of a connection show that they know it, neither sends it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import ssl

from drainfsm.errors import ConfigError
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.wire import node_messages as n

NONCE_BYTES = 32


def nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def proof(token: str, *, by: str, theirs: bytes, own: bytes, claims: str) -> bytes:
    """What only somebody with the token can compute from the two nonces.

    ``by`` (``agent`` or ``coordinator``) keeps one side from reflecting the other's proof.
    """
    message = b"\0".join((b"drainfsm-v1", by.encode(), theirs.hex().encode(), own.hex().encode()))
    return hmac.digest(token.encode(), message + b"\0" + claims.encode(), hashlib.sha256)


def claims_of(claim: n.Proof) -> str:
    """What the proof is for."""
    node = f"{claim.job_id}/{claim.node_rank}/{claim.node_count}"
    return f"{node}/{claim.exit_code}/{claim.problem}" if claim.problem else node


def verify_mac(mac: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(mac, expected)


def server_tls(config: RunConfig) -> ssl.SSLContext | None:
    """Raises: ConfigError: a file cannot be read."""
    if not config.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, config)
    if config.tls_ca:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(config: RunConfig) -> ssl.SSLContext | None:
    """Raises: ConfigError: a file cannot be read."""
    if not config.tls_ca and not config.tls_cert:
        return None
    context = ssl.create_default_context()
    _load(context, config)
    return context


def _load(context: ssl.SSLContext, config: RunConfig) -> None:
    try:
        if config.tls_ca:
            context.load_verify_locations(config.tls_ca)
        if config.tls_cert:
            context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_ca, tls_cert or tls_key: {error}") from error
