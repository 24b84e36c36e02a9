"""``drainfsm drill SCENARIO|all``: a real job, what is done to it, and the five criteria."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from drainfsm.cli.settings import Settings
from drainfsm.cli.stores import store_of
from drainfsm.drills.job import DrillSettings
from drainfsm.drills.render import html_page, junit_xml, table_text
from drainfsm.drills.run import NOBODY, Judged, play
from drainfsm.drills.scenarios import SCENARIOS
from drainfsm.errors import BrokerError, ConfigError
from drainfsm.runtime.clock import Clock
from drainfsm.store.rehearsals import DrainRehearsed, record_rehearsal

ALL = "all"
GRACE_S = 30.0
EVERY_STEPS = 5
OF_DEMO = ("-m", "drainfsm.demo.training", "--steps", "1000000", "--pause-ms", "40")
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
NEEDED = ("torch", "xxhash")


def main(arguments: argparse.Namespace, given: Settings, command: Sequence[str]) -> int:
    """0 only if every scenario passed."""
    names = list(SCENARIOS) if arguments.what == ALL else [arguments.what]
    root = Path(arguments.dir or tempfile.mkdtemp(prefix="drainfsm-drill-")).absolute()
    for name in names:
        if (root / name).exists():
            raise ConfigError(f"--dir {root} holds an earlier drill of {name}: name another one")
    job, store = (given.job, store_of(given)) if arguments.store is not None else ("", None)
    if store is not None:
        store.create()  # one that cannot be written is found before the drills, not after them
    found: list[Judged] = []
    rehearsed: list[DrainRehearsed] = []
    with _broker(root) as nats_url:
        settings = _settings(arguments, given, command, nats_url=nats_url)
        for name in names:
            print(f"drilling {name}: {SCENARIOS[name].title}", file=sys.stderr, flush=True)
            found.append(play(name, root / name, settings))
            now_unix_ms = Clock().now_unix_ms()
            rehearsed.append(_rehearsed(found[-1], job=job, now_unix_ms=now_unix_ms))
    _write(arguments, found)
    if arguments.json:
        for one in found:
            sys.stdout.buffer.write(msgspec.json.encode(_as_json(one)) + b"\n")
    else:
        print("\n".join(table_text(found)))
        print(f"Logs, journals and stores lie in {root}")
    if store is not None:
        for verdict in rehearsed:
            record_rehearsal(store, verdict)
    return 0 if all(one.passed for one in found) else 1


def _rehearsed(judged: Judged, *, job: str, now_unix_ms: int) -> DrainRehearsed:
    """What goes on record."""
    broken = [name for name, verdict in judged.criteria.items() if verdict is False]
    wrong = "; ".join((*broken, *judged.rules_broken, *judged.problem.splitlines()[:1]))
    return DrainRehearsed(
        job_id=job,
        at_unix_ms=now_unix_ms,
        scenario=judged.scenario,
        passed=judged.passed,
        decision=judged.decision,
        took_ms=judged.took_ms,
        wrong=wrong,
    )


def _as_json(one: Judged) -> dict[str, object]:
    return {"passed": one.passed, **msgspec.to_builtins(one)}


def _settings(
    arguments: argparse.Namespace, given: Settings, command: Sequence[str], *, nats_url: str
) -> DrillSettings:
    grace, every = given.given("grace"), given.given("every_steps")
    return DrillSettings(
        command=tuple(command) or _demo(),
        grace_s=grace if isinstance(grace, float) else GRACE_S,
        every_steps=every if isinstance(every, int) and every else EVERY_STEPS,
        allowances=given.allowances,
        nats_url=nats_url,
        timeout_s=arguments.timeout,
    )


def _demo() -> tuple[str, ...]:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"drill: no command, and the demo's job needs {', '.join(missing)}: put yours behind "
            "`--`, or install `pip install 'drainfsm[demo]'`"
        )
    return (sys.executable, *LAUNCHER, *OF_DEMO)


@contextlib.contextmanager
def _broker(root: Path) -> Iterator[str]:
    """A server for all scenarios, where one is installed; drains need none."""
    from drainfsm.log.embedded import EmbeddedServer

    root.mkdir(parents=True, exist_ok=True)
    try:
        server = EmbeddedServer.start(root / "nats")
    except BrokerError:
        yield NOBODY
        return
    try:
        yield server.url
    finally:
        server.stop()


def _write(arguments: argparse.Namespace, found: Sequence[Judged]) -> None:
    for path, text in (
        (arguments.html, html_page(found)),
        (arguments.junit, junit_xml(found)),
    ):
        if path is not None:
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"{path}: {error.strerror}") from error
