"""A real etcd and kube-apiserver on loopback, for as long as a test needs them."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from ssl import create_default_context

READY_S = 120.0


@contextlib.contextmanager
def control_plane(assets: Path, directory: Path) -> Iterator[Path]:
    """The administrator's kubeconfig, once the API server is ready.

    Raises:
        TimeoutError: it does not become ready; the logs are in ``directory``.
    """
    ports = _free_ports(3)
    token = secrets.token_hex(16)
    (directory / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    key = directory / "service-account.key"
    openssl = shutil.which("openssl") or "openssl"
    subprocess.run([openssl, "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    etcd = f"http://127.0.0.1:{ports[0]}"
    commands: list[list[str]] = [
        [
            str(assets / "etcd"),
            f"--data-dir={directory / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{ports[1]}",
            "--unsafe-no-fsync",
        ],
        [
            str(assets / "kube-apiserver"),
            f"--etcd-servers={etcd}",
            f"--cert-dir={directory / 'certs'}",
            "--bind-address=127.0.0.1",
            f"--secure-port={ports[2]}",
            f"--token-auth-file={directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",
        ],
    ]
    with contextlib.ExitStack() as stack:
        for command in commands:
            log = stack.enter_context((directory / f"{Path(command[0]).name}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(_end, process)
        url = f"https://127.0.0.1:{ports[2]}"
        certificate = directory / "certs" / "apiserver.crt"
        _wait_until_ready(url, certificate, token)
        yield _kubeconfig(directory / "kubeconfig", url, certificate, token)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_ready(url: str, certificate: Path, token: str) -> None:
    """``/readyz`` does not wait for the schemas that kubectl validates by."""
    request = urllib.request.Request(
        f"{url}/openapi/v3", headers={"Authorization": f"Bearer {token}"}
    )
    gives_up = time.monotonic() + READY_S
    while True:
        try:
            context = create_default_context(cafile=str(certificate))
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.URLError):
            if time.monotonic() > gives_up:
                raise TimeoutError(f"{url} does not become ready") from None
        time.sleep(0.2)


def _kubeconfig(path: Path, url: str, certificate: Path, token: str) -> Path:
    authority = base64.b64encode(certificate.read_bytes()).decode()
    cluster = {"server": url, "certificate-authority-data": authority}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(json.dumps(config))
    return path
