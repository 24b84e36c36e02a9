"""One metadata server by hand: ``python -m drainfsm.testing.metadata aws --interrupt-after 20``.

Prints the environment variable that points the cloud's adapter to it, and serves until Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import time

from drainfsm.testing.metadata import (
    AlibabaMetadataServer,
    AwsMetadataServer,
    AzureMetadataServer,
    GcpMetadataServer,
    MetadataServer,
    TencentMetadataServer,
)

SERVERS: dict[str, type[MetadataServer]] = {
    "aws": AwsMetadataServer,
    "gcp": GcpMetadataServer,
    "azure": AzureMetadataServer,
    "alibaba": AlibabaMetadataServer,
    "tencent": TencentMetadataServer,
}


def interrupt(server: MetadataServer, *, in_ms: int) -> None:
    """The cloud's HARD notice."""
    match server:
        case AwsMetadataServer() | AlibabaMetadataServer():
            server.interrupt(in_ms=in_ms)
        case GcpMetadataServer():
            server.preempt()
        case AzureMetadataServer():
            server.schedule("Preempt", in_ms=in_ms)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m drainfsm.testing.metadata")
    parser.add_argument("cloud", choices=SERVERS)
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--interrupt-after", type=float, metavar="SECONDS", help="default: never")
    parser.add_argument("--in", dest="lead", type=float, default=120.0, metavar="SECONDS")
    options = parser.parse_args(argv)
    with SERVERS[options.cloud](port=options.port) as server:
        _say(f"export {server.variable}={server.endpoint}")
        try:
            if options.interrupt_after is not None:
                time.sleep(options.interrupt_after)
                interrupt(server, in_ms=round(options.lead * 1_000))
                _say(f"# interrupted: {options.lead:g} s left")
            while True:
                time.sleep(3_600)
        except KeyboardInterrupt:
            return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
