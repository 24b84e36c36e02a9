"""``drainfsm serve``: jobs and drains in browsers, as they happen."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drainfsm.cli.logs import reader_of
from drainfsm.cli.options import NATS_KEYS, Parser, add_options
from drainfsm.cli.settings import load_settings
from drainfsm.errors import ConfigError

if TYPE_CHECKING:
    from drainfsm.views.serve.access import Access
    from drainfsm.views.watch import Reader

USAGE = """serve [--nats URL | --state-dir DIR | --file PATH] [--listen HOST:PORT]
                      [--user-header NAME]"""

EPILOG = """\
Follows the stream of --nats, else all journals in --state-dir, or a file that grows, by one reader
for all viewers. Pages: the fleet, a job with its open drain, and for every drain its postmortem
with replay and what-if, under an address that stays. GET /metrics for Prometheus.

It listens on this machine alone, and everybody here may look. For others: DRAINFSM_SERVE_TOKEN
(16 characters or more; open /?token=… once), or behind a proxy that authenticates --user-header,
the header that it sets for those whom it lets in and takes from all others. TLS is the proxy's."""

TOKEN_VARIABLE = "DRAINFSM_SERVE_TOKEN"
FILES_MAX = 8_192
OWN_FILES = 64
"""What else is open than the connections of viewers."""


def parser() -> Parser:
    made = Parser("serve", "Show jobs and drains in browsers.", usage=USAGE, epilog=EPILOG)
    add_options(made, (*NATS_KEYS, "state_dir"))
    made.add_argument("--file", metavar="PATH", type=Path, help="exported file, or a journal")
    made.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:8075",
        help="default: 127.0.0.1:8075; port 0: a free one",
    )
    made.add_argument("--user-header", metavar="NAME", default="", help="set by a trusted proxy")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "serve needs starlette and uvicorn: install them with `pip install 'drainfsm[serve]'`"
        ) from error
    from drainfsm.views.serve.access import Access

    host, port = _address(arguments.listen)
    token = os.environ.get(TOKEN_VARIABLE, "")
    access = Access(host=host, token=token, user_header=arguments.user_header)
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    reader = reader_of(settings, arguments.file, job=None)
    return asyncio.run(_serve(reader, access, _bound(host, port)))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"--listen: {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _bound(host: str, port: int) -> socket.socket:
    """Raises: ConfigError: the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(f"--listen {host}:{port}: {error.strerror or error}") from error


def _files() -> int:
    """How many files and connections may be open: what the system grants, up to a limit."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


async def _serve(reader: Reader, access: Access, listening: socket.socket) -> int:
    from drainfsm.views.serve.app import make_app
    from drainfsm.views.serve.hub import VIEWERS_MAX, Hub
    from drainfsm.views.serve.server import PatientServer

    def say(text: str) -> None:
        print(f"drainfsm: {text}", file=sys.stderr, flush=True)

    files = _files()
    hub = Hub(reader, viewers_max=min(VIEWERS_MAX, files - min(OWN_FILES, files // 2)))
    server = PatientServer(make_app(hub, reader.load, access), hub, say=say)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{port}/", flush=True)
    say(f"serving {reader.where}; Ctrl-C ends it")
    await server.serve(sockets=[listening])
    return 0
