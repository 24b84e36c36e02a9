"""Real NATS servers with a configuration of the test's own, and certificates for them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from drainfsm.log.embedded import server_binary

LISTENING = re.compile(r"Listening for client connections on (\S+)")


@contextlib.contextmanager
def nats_server(
    directory: Path, config: dict[str, Any] | None = None, *, include: Path | None = None
) -> Iterator[str]:
    """Its address. With JetStream, unless ``config`` has None for it; ``include``: a file that its
    configuration includes."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "listen": "127.0.0.1:-1",
        "jetstream": {"store_dir": str(directory / "store")},
        **(config or {}),
    }
    given = {name: value for name, value in settings.items() if value is not None}
    lines = [f"{name}: {json.dumps(value)}" for name, value in given.items()]
    if include is not None:  # the server takes the path as one below the including file
        (directory / include.name).write_bytes(include.read_bytes())
        lines.append(f"include {include.name}")
    file = directory / "test.conf"
    file.write_text("\n".join(lines))
    with configured_server(file) as address:
        yield address


@contextlib.contextmanager
def configured_server(file: Path, *, variables: dict[str, str] | None = None) -> Iterator[str]:
    """Its address. ``variables``: that the file names."""
    command = [server_binary(), "--config", str(file)]
    environment = {**os.environ, **(variables or {})}
    told: list[str] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            for line in server.stderr:
                told.append(line)
                if found := LISTENING.search(line):
                    break
            else:
                raise AssertionError("".join(told))
            yield found[1]
        finally:
            server.kill()


def certificate(directory: Path, *, valid_s: float = 86_400.0) -> tuple[str, str]:
    """A self-signed one for 127.0.0.1, which is its own authority, and its key: paths of both."""
    directory.mkdir(parents=True, exist_ok=True)
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(seconds=valid_s))
        .add_extension(address, critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "key.pem").write_bytes(key.private_bytes(pem, form, secret))
    (directory / "cert.pem").write_bytes(made.public_bytes(pem))
    return str(directory / "cert.pem"), str(directory / "key.pem")
