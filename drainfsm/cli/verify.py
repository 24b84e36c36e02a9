"""``drainfsm verify``: whether a job's log is the one that was written."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from drainfsm.cli.logs import LINE_CHARS_MAX, add_log_options
from drainfsm.cli.options import Parser
from drainfsm.cli.settings import Settings, load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core.text import printable
from drainfsm.errors import ConfigError
from drainfsm.views.raw_log import RawLog, file_lines, journal_lines, stream_lines
from drainfsm.views.verify import Anchor, Verified, verify_attempts

if TYPE_CHECKING:
    from drainfsm.log.signing import SignersKnown

DAY_MS = 86_400_000
SIGNERS_VARIABLE = "DRAINFSM_SIGNERS"
USAGE = """verify (--job NAME | --file PATH) [--epoch N] [--nats URL] [--store URL_OR_PATH]
                [--signer KEY_OR_FILE …] [--json]"""

EPILOG = """\
Every record names the one before it by its SHA-256. verify goes along this chain in --file (an
exported file or a journal), the stream of --nats, or the journals in --state-dir, and says where a
record was removed, changed, inserted or moved. With --store it also compares what commits and
requeue records of the job say about the log. Agents that show the NATS server an nkey
(--nats-creds, --nats-nkey) sign what they append; with --signer, or DRAINFSM_SIGNERS (a,b), every
record must be signed by one of these public keys, or have one behind it that is: give the file
that `drainfsm auth init` has written, agent-NAME.pub. Without either, a log that was rewritten as a
whole looks intact; without --store, so may one whose end was cut off.

Exit code 0: as it was written, as far as can be checked; 1: it is not, or part of it is
unreadable."""


def parser() -> Parser:
    made = Parser("verify", "Find what was changed in a log.", usage=USAGE, epilog=EPILOG)
    add_log_options(made, "store")
    made.add_argument(
        "--signer",
        metavar="KEY_OR_FILE",
        action="append",
        default=[],
        help="public nkey, or a file of them, of who may have written the log; may be repeated",
    )
    made.add_argument("--json", action="store_true", help="JSON lines, one for each attempt")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    signers = _signers(arguments.signer or os.environ.get(SIGNERS_VARIABLE, "").split(","))
    log = _log(settings, arguments)
    job_id = None if arguments.job is None else settings.job
    anchors = _anchors(settings, arguments)
    found = verify_attempts(
        log.lines,
        anchors,
        job_id=job_id,
        signers=signers,
        keeps_all=log.forgets_after_ms == 0,
    )
    if arguments.epoch is not None:
        found = [one for one in found if one.epoch == arguments.epoch]
    if not found:
        raise ConfigError(f"{log.where}: no records; give --file, --nats or --state-dir")
    for one in found:
        if arguments.json:
            sys.stdout.buffer.write(msgspec.json.encode(one) + b"\n")
        else:
            text = _text(one, signers_known=signers is not None)
            print("\n".join(printable(line, chars_max=LINE_CHARS_MAX) for line in text))
    sys.stdout.flush()
    _tell_more(log, found)
    return int(bool(log.damage) or any(one.findings for one in found))


def _tell_more(log: RawLog, found: Sequence[Verified]) -> None:
    first = any(f.kind == "removed" and f.position == 0 for one in found for f in one.findings)
    if log.forgets_after_ms and first:
        days = log.forgets_after_ms / DAY_MS
        told = f"the stream keeps records for {days:.3g} days: missing first ones may be too old"
        print(f"drainfsm: {told}", file=sys.stderr)
    if log.damage:
        print(f"drainfsm: {printable(log.damage, chars_max=LINE_CHARS_MAX)}", file=sys.stderr)


def _log(settings: Settings, arguments: argparse.Namespace) -> RawLog:
    if arguments.file is not None:
        return file_lines(arguments.file, job_id=None if arguments.job is None else settings.job)
    if server := settings.nats:
        return stream_lines(server, job_id=settings.job)
    return journal_lines(settings.state_dir, job_id=settings.job)


def _anchors(settings: Settings, arguments: argparse.Namespace) -> dict[int, list[Anchor]]:
    """By attempt; none if no store was named on the command line."""
    if arguments.store is None:
        return {}
    from drainfsm.store.log_heads import log_heads

    found: dict[int, list[Anchor]] = {}
    for kept in log_heads(store_of(settings), job_id=settings.job):
        if arguments.epoch in (None, kept.epoch):
            found.setdefault(kept.epoch, []).append(Anchor(kept.where, kept.head))
    return found


def _signers(given: Sequence[str]) -> SignersKnown | None:
    """None: none is given."""
    given = [text for text in given if text]
    if not given:
        return None
    from drainfsm.log.signing import SignersKnown

    known = SignersKnown()
    for text in given:
        if "/" not in text and not Path(text).exists():
            known.add(text, where="--signer")
            continue
        try:
            lines = Path(text).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise ConfigError(f"--signer {text}: {error}") from error
        for number, line in enumerate(lines, start=1):
            if key := line.partition("#")[0].strip():
                known.add(key, where=f"--signer {text}: line {number}")
    return known


def _text(one: Verified, *, signers_known: bool) -> list[str]:
    state = "chained" if one.chained else "not chained"
    repeated = f", {one.repeated_count} stored twice" if one.repeated_count else ""
    known = f", {one.anchor_count} heads in the store" if one.anchor_count else ""
    named = f", signed by {' and '.join(one.signed_by)}" if one.signed_by else ""
    if signers_known and not one.ended:
        known += ", no end on record (running, lost, fenced or cut off)"
    verdict = "CHANGED" if one.findings else "as written" if one.chained else "nothing to compare"
    counted = f"{one.record_count} records, {state}{named}{repeated}{known}"
    return [f"{one.job_id} attempt {one.epoch}: {counted}: {verdict}"] + [
        f"  {finding.kind.replace('_', ' ')} "
        + (f"record {finding.position} " if finding.position is not None else "")
        + f"({finding.where}): {finding.detail}"
        for finding in one.findings
    ]
