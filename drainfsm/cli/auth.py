"""``drainfsm auth init``: users of a NATS server, each with only the rights that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drainfsm.cli.options import Parser
from drainfsm.errors import ConfigError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import check_job_name

USAGE = """auth init --output DIR [--job NAME …] [--nkeys]"""

EPILOG = """\
Writes admin.creds (everything in the account), reader.creds (read every job, nothing else) and for
each --job agent-NAME.creds (publish and read that job's log, nothing else), and nats-server.conf,
which the server's own configuration includes. Whoever holds operator.nk or account.nk can make
users of their own: keep them away from the cluster.

Called again, it adds what is missing and changes nothing else; the server knows users that are
added. With --nkeys there is no operator: each user gets a seed (.nk), and nats-server.conf holds
their public keys and permissions, so the server must read it again after every call."""


def parser() -> Parser:
    about = "Make credentials for agents, readers and administrators of the log."
    made = Parser("auth", about, usage=USAGE, epilog=EPILOG)
    made.add_argument("what", choices=("init",))
    made.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="where the files go"
    )
    made.add_argument(
        "--job", metavar="NAME", action="append", default=[], help="a job; may be repeated"
    )
    made.add_argument("--nkeys", action="store_true", help="users by nkey, without an operator")
    return made


def main(argv: Sequence[str]) -> int:
    from drainfsm.log.authority import write_credentials, write_users

    arguments = parser().parse(argv)
    for job in arguments.job:
        check_job_name(job)
    directory: Path = arguments.output
    try:
        if arguments.nkeys:
            new = write_users(directory, arguments.job)
        else:
            issued_unix_s = Clock().now_unix_ms() // 1_000
            new = write_credentials(directory, arguments.job, issued_unix_s=issued_unix_s)
    except OSError as error:
        raise ConfigError(f"--output {directory}: {error.strerror or error}") from error
    for path in new:
        print(path)
    return 0
