"""``python -m drainfsm_kit.site``: build the site into build/site, or ``--serve`` it."""

from __future__ import annotations

import argparse
import functools
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from drainfsm_kit.site.build import ROOT, build


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--serve", metavar="PORT", type=int, help="on loopback, after the build")
    options = parser.parse_args()
    problems = build(options.output)
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    if problems:
        return 1
    sys.stdout.write(f"{options.output / 'index.html'}\n")
    if options.serve:
        handler = functools.partial(SimpleHTTPRequestHandler, directory=str(options.output))
        ThreadingHTTPServer(("127.0.0.1", options.serve), handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
