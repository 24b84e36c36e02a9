"""``drainfsm init``: a configuration for a directory, and the lines that its loop needs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from drainfsm.cli.options import Parser
from drainfsm.cli.settings import CONFIG_FILE, load_settings
from drainfsm.core.text import printable
from drainfsm.durable import sync_directory, write_synced
from drainfsm.errors import ConfigError
from drainfsm.init.configuration import configuration, job_name
from drainfsm.init.directory import Contents, command_for, look_at, script_of
from drainfsm.init.frameworks import framework_of, imports_relatively
from drainfsm.init.platforms import PlatformSign, platforms
from drainfsm.init.proposal import Proposal, propose
from drainfsm.init.script import Script, read_script
from drainfsm.runtime.config import check_job_name

USAGE = "init [DIR] [--script FILE] [--job NAME] [--store STORE] [--apply | --diff]"

EPILOG = """\
Looks for the training script (by its syntax tree: it is not run), for a line that launches it, and
for signs of a platform. Writes drainfsm.toml, never over one that is there, and shows the lines
that the script needs as a unified diff, which it does not apply unless --apply says so. Then it
says what `drainfsm doctor` would try next.

Exit code 0: done; 1: drainfsm.toml is there, but no rule covers the script: it says which line, and
the lines are yours to write (docs/embed.md)."""

CHECKS = {
    "window": "is the grace longer than a save takes (--bytes SIZE: of one checkpoint)",
    "command": "can the command be started, and do signals reach it",
    "coordinator": "do the agents of several nodes find and trust each other",
    "store": "put-if-absent, what an fsync is worth, bandwidth, room, clock",
    "state dir": "room and a file system for the journal",
    "memory": "is there enough to stage a checkpoint",
    "log": "the log's NATS server, or what starts one here",
    "source": "does the platform answer, and is somebody listening to it",
}
"""What ``doctor`` looks at, in its order."""


class FirstLook(NamedTuple):
    """All that is known before anything is written."""

    contents: Contents
    script: Script
    proposal: Proposal
    evidence: tuple[PlatformSign, ...]
    command: str
    command_from: str


def parser() -> Parser:
    made = Parser("init", "Set up a directory.", usage=USAGE, epilog=EPILOG)
    made.add_argument(
        "directory", metavar="DIR", nargs="?", type=Path, default=Path(), help="default: this one"
    )
    made.add_argument("--script", metavar="FILE", help="the training script, below DIR")
    made.add_argument("--job", metavar="NAME", help="default: the directory's name")
    made.add_argument(
        "--store", metavar="STORE", default="checkpoints", help="default: checkpoints, in DIR"
    )
    how = made.add_mutually_exclusive_group()
    how.add_argument("--apply", action="store_true", help="change the script as shown")
    how.add_argument("--diff", action="store_true", help="print the diff alone, and write nothing")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    seen = look(arguments.directory, script=arguments.script)
    change = seen.proposal.change
    if arguments.diff:
        if seen.proposal.refused:
            raise ConfigError(f"no rule covers the script: {seen.proposal.refused}")
        print(seen.script.diff(change.after) if change else "", end="")
        return 0
    print("\n".join(_found(seen)))
    root: Path = arguments.directory
    job = _configure(root, seen, job=arguments.job, store=arguments.store)
    print("\n".join(_proposed(seen, root, applied=arguments.apply)), end="\n\n")
    if arguments.apply and change is not None:
        seen.script.write(change.after)
    print("\n".join(_next(seen, job)))
    return int(bool(seen.proposal.refused))


def look(root: Path, *, script: str | None) -> FirstLook:
    """Reads, and writes nothing.

    Raises:
        ConfigError: the directory or the script cannot be used, or it is not clear which script.
        ScriptRefusedError: the script is no Python.
    """
    contents = look_at(root)
    name = script or script_of(contents)
    path = root / name
    if script is not None and not path.is_file():
        raise ConfigError(f"--script {script}: there is no such file in {root}")
    read = read_script(path, name=path.relative_to(root).as_posix() if script is None else script)
    command, command_from = command_for(
        contents,
        name,
        is_distributed="torch.distributed" in read.text,
        is_module=imports_relatively(read),
    )
    return FirstLook(
        contents=contents,
        script=read,
        proposal=propose(read),
        evidence=platforms(contents.texts, environment=os.environ),
        command=command,
        command_from=command_from,
    )


def _found(seen: FirstLook) -> Iterator[str]:
    change = seen.proposal.change
    yield f"script    {change.summary if change else seen.script.name}"
    where = f" ({seen.command_from})" if seen.command_from else " (no file here starts it: a guess)"
    yield f"launcher  {printable(seen.command)}{where}"
    for one in seen.evidence:
        yield f"platform  {one.source}: {printable(one.because)}"
    if not seen.evidence:
        yield "platform  none is recognised: signals and `drainfsm notify` tell"


def _configure(root: Path, seen: FirstLook, *, job: str | None, store: str) -> str:
    """Writes the file, unless it is there. The job's name, as the file has it."""
    path = root / CONFIG_FILE
    if not os.path.lexists(path):
        name = job or job_name(root.resolve().name) or "job"
        check_job_name(name)
        text = configuration(
            job=name,
            store=store,
            evidence=seen.evidence,
            by_steps=framework_of(seen.script) is not None,
        )
        try:
            write_synced(path, text.encode())
            sync_directory(root)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
        print(f"\nwrote {path}:\n")
        print("".join(f"    {line}\n" for line in text.splitlines()))
        return name
    print(f"\n{path} is there already, and stays as it is.\n")
    settings = load_settings({}, environment={}, directory=root)
    return settings.job


def _proposed(seen: FirstLook, root: Path, *, applied: bool) -> Iterator[str]:
    change, refused = seen.proposal
    if refused:
        yield f"No lines are proposed for the script: {refused}."
        yield "docs/embed.md and docs/frameworks.md have the lines to write."
        return
    if change is None:
        yield f"{seen.script.name} imports drainfsm already: nothing is proposed."
        return
    init = "drainfsm init" if root == Path() else f"drainfsm init {root}"
    if applied:
        yield f"changed {seen.script.name}:"
    else:
        yield f"proposed, not applied (`{init} --apply` does, or `{init} --diff | git apply`):"
    yield ""
    yield seen.script.diff(change.after).rstrip("\n")
    for note in change.notes:
        yield f"note: {note}"


def _next(seen: FirstLook, job: str) -> Iterator[str]:
    sources = "".join(f" --source {one.source}" for one in seen.evidence if not one.here)
    yield f"next, in {seen.contents.root.resolve()}: drainfsm doctor{sources} -- {seen.command}"
    for check, what in CHECKS.items():
        named = ", ".join(one.source for one in seen.evidence) if check == "source" else ""
        yield f"  {check:11} {what}{f' ({named})' if named else ''}"
    yield f"then: drainfsm run{sources} -- {seen.command}"
    yield f"and from another shell: drainfsm notify --job {job} --in 120 --cause maintenance"
