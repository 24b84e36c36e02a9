"""``drainfsm drill SCENARIO|all``: a real job, what is done to it, and the five criteria."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec.structs import replace

from drainfsm.cli.settings import Settings
from drainfsm.cli.stores import store_of
from drainfsm.core.text import printable
from drainfsm.drills.job import DrillSettings
from drainfsm.drills.render import html_page, junit_xml, table_text
from drainfsm.drills.run import NOBODY, Judged, play
from drainfsm.drills.scenarios import SCENARIOS
from drainfsm.errors import BrokerError, ConfigError, DrainfsmError
from drainfsm.runtime.clock import Clock
from drainfsm.store import CommitLog, ObjectStore
from drainfsm.store.rehearsals import DrainRehearsed, record_rehearsal

ALL = "all"
GRACE_S = 30.0
EVERY_STEPS = 5
OF_DEMO = ("-m", "drainfsm.demo.training", "--steps", "1000000", "--pause-ms", "40")
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
NEEDED = ("torch", "xxhash")


def main(arguments: argparse.Namespace, given: Settings, command: Sequence[str]) -> int:
    """0 only if every scenario passed, and all is on record that was to be."""
    names = list(SCENARIOS) if arguments.what == ALL else [arguments.what]
    settings = _settings(arguments, given, command)
    _check_pages(arguments)
    job, store = (given.job, store_of(given)) if arguments.store is not None else ("", None)
    if store is not None:
        store.create()
        CommitLog(store, job_id=job).head()  # the wrong store is found before the drills
    root = _directory(arguments.dir, names)
    found: list[Judged] = []
    unrecorded = 0
    try:
        with _broker(root) as nats_url:
            for name in names:
                print(f"drilling {name}: {SCENARIOS[name].title}", file=sys.stderr, flush=True)
                found.append(play(name, root / name, replace(settings, nats_url=nats_url)))
                unrecorded += not _recorded(store, found[-1], job=job)
    finally:  # also what was found before it was interrupted
        _tell(found, root, as_json=arguments.json)
    _write(arguments, found)
    return 0 if all(one.passed for one in found) and not unrecorded else 1


def _directory(given: str | None, names: Sequence[str]) -> Path:
    """With one of its own for each scenario: of two drills at once, one is refused."""
    root = Path(given or tempfile.mkdtemp(prefix="drainfsm-drill-")).absolute()
    if not str(root).isprintable():
        raise ConfigError(f"--dir {str(root)!r}: give a path of printable characters")
    root.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        try:
            (root / name).mkdir()
        except FileExistsError as error:
            for made in names[:number]:
                (root / made).rmdir()
            raise ConfigError(
                f"--dir {root} holds another drill of {name}: name another directory"
            ) from error
    return root


def _recorded(store: ObjectStore | None, judged: Judged, *, job: str) -> bool:
    if store is None:
        return True
    try:
        record_rehearsal(store, _rehearsed(judged, job=job, now_unix_ms=Clock().now_unix_ms()))
    except DrainfsmError as error:
        print(f"drainfsm: not on record: {printable(str(error))}", file=sys.stderr)
        return False
    return True


def _tell(found: Sequence[Judged], root: Path, *, as_json: bool) -> None:
    if as_json:
        for one in found:
            sys.stdout.buffer.write(msgspec.json.encode(_as_json(one)) + b"\n")
    elif found:
        print("\n".join(table_text(found)))
        print(f"Logs, journals and stores lie in {root}")


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
    arguments: argparse.Namespace, given: Settings, command: Sequence[str]
) -> DrillSettings:
    """Raises: ConfigError: `drainfsm run` would refuse them."""
    given.check(("grace", "every_steps"))
    grace, every = given.given("grace"), given.given("every_steps")
    return DrillSettings(
        command=tuple(command) or _demo(),
        grace_s=grace if isinstance(grace, float) else GRACE_S,
        every_steps=every if isinstance(every, int) and every else EVERY_STEPS,
        allowances=given.allowances,
        nats_url=NOBODY,
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

    try:
        server = EmbeddedServer.start(root / "nats")
    except BrokerError:
        yield NOBODY
        return
    try:
        yield server.url
    finally:
        server.stop()


def _check_pages(arguments: argparse.Namespace) -> None:
    """Raises: ConfigError: a page could not be written after the drills."""
    for path in (arguments.html, arguments.junit):
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise ConfigError(f"{path} cannot be written")


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
