"""What is in a directory: Python scripts that may train, and lines that launch one."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from drainfsm.errors import ConfigError

ENTRIES_MAX = 20_000
DEPTH_MAX = 6
FILE_BYTES_MAX = 1_000_000

NOT_LOOKED_INTO = {"__pycache__", "node_modules", "site-packages", "build", "dist", "wandb", "venv"}
LAUNCHER_FILES = {".sh", ".bash", ".sbatch", ".slurm", ".yaml", ".yml", ".md"}
"""A README often has the only line that starts the job."""

_LAUNCHER = (
    r"\b(?:torchrun|python3? -m torch\.distributed\.(?:run|launch)|accelerate launch|deepspeed"
    r"|mpirun|mpiexec|composer|python3?)\s[^\n]*?"
)
_LAUNCH = re.compile(
    rf"{_LAUNCHER}(?:(?P<file>[\w./-]+\.py\b)"
    r"|(?:-m|--module)\s+(?P<module>(?!(?:torch|accelerate|pip|venv|pytest)\b)[A-Za-z_]\w*(?:\.\w+)*)(?!\S))"
    r"[^\n]*"
)
_END = re.compile(r"\s(?:&&|\|\||\d?>|[|;&])|[`\"'\]]\s*$|\s#")


class Launch(NamedTuple):
    """A line that starts a script."""

    command: str
    script: str
    """As the line names it; of a module, its file."""

    file: str


class Contents(NamedTuple):
    root: Path
    python: tuple[str, ...]
    """Files that mention what training needs, by their names below the root."""

    launches: tuple[Launch, ...]
    texts: tuple[tuple[str, str], ...]
    """Names and text of files that may say how and where the job is run."""


def look_at(root: Path) -> Contents:
    """Reads names, and the text of small files.

    Raises:
        ConfigError: it is no directory, cannot be read, or is too large to be a project.
    """
    if not root.is_dir():
        what = "is no directory" if root.exists() else "is not there"
        raise ConfigError(f"{root} {what}: name the directory of the training script")
    python: list[str] = []
    texts: list[tuple[str, str]] = []
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".py":
            if _TRAINS.search(_text(path)):
                python.append(name)
        elif path.suffix in LAUNCHER_FILES or path.name in ("Makefile", "Dockerfile"):
            texts.append((name, _text(path)))
    launches = tuple(launch for name, text in texts for launch in _launches(name, text))
    return Contents(root=root, python=tuple(python), launches=launches, texts=tuple(texts))


_TRAINS = re.compile(r"\.step\(|Trainer\(|\bAccelerator\(|\.initialize\(|\bpretrain\(")
_OF_TESTS = re.compile(r"(^|/)(tests?/|test_|conftest)")


def _files(root: Path) -> Iterator[Path]:
    seen = 0
    for folder, folders, files in os.walk(root, onerror=_refuse(root)):
        here = Path(folder)
        depth = len(here.relative_to(root).parts)
        folders[:] = sorted(
            one for one in folders if depth < DEPTH_MAX and _is_looked_into(here / one)
        )
        seen += len(folders) + len(files)
        if seen > ENTRIES_MAX:
            raise ConfigError(
                f"{root} holds more than {ENTRIES_MAX} files: name the directory of the training "
                "script, or the script with --script"
            )
        yield from (here / name for name in sorted(files))


def _refuse(root: Path) -> Callable[[OSError], None]:
    def raise_for_root(error: OSError) -> None:
        """A folder below it that cannot be read is none of the project's."""
        if error.filename == str(root):
            raise ConfigError(f"{root} cannot be read: {error.strerror}")

    return raise_for_root


def _is_looked_into(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in NOT_LOOKED_INTO or folder.is_symlink():
        return False
    return not (folder / "pyvenv.cfg").exists()


def _text(path: Path) -> str:
    """Empty: it is no file, too large, or cannot be read; whoever needs it will say so."""
    try:
        if not path.is_file() or path.stat().st_size > FILE_BYTES_MAX:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _launches(name: str, text: str) -> Iterator[Launch]:
    joined = re.sub(r"\\\r?\n\s*", "", text)
    for found in _LAUNCH.finditer(joined):
        line = found[0]
        kind = "file" if found["file"] else "module"
        if end := _END.search(line, found.end(kind) - found.start()):
            line = line[: end.start()]
        script = found["file"] or found["module"].replace(".", "/") + ".py"
        if script != "setup.py":
            yield Launch(command=line.strip(), script=script, file=name)


def script_of(contents: Contents) -> str:
    """The script that trains, by its name below the root.

    Raises:
        ConfigError: there is none, or several may be meant.
    """
    names = {name for name in contents.python if not _OF_TESTS.search(name)}
    names = names or set(contents.python)
    if not names:
        raise ConfigError(
            f"{contents.root}: no Python file here trains with torch; name one with --script"
        )
    if len(names) == 1:
        return names.pop()
    launched = {name for launch in contents.launches if (name := _resolved(launch, names))}
    if len(launched) == 1:
        return launched.pop()
    likely = sorted(launched or names)
    shown = ", ".join(likely[:8]) + (", …" if len(likely) > 8 else "")
    raise ConfigError(f"which script trains? Name it with --script; there are {shown}")


def _resolved(launch: Launch, names: set[str]) -> str:
    """A line may be run from elsewhere: the longest name that ends the same way."""
    wanted = launch.script.removeprefix("./").split("/")
    for length in range(len(wanted), 0, -1):
        if (name := "/".join(wanted[-length:])) in names:
            return name
    return ""


def command_for(
    contents: Contents, script: str, *, is_distributed: bool, is_module: bool = False
) -> tuple[str, str]:
    """The command behind ``drainfsm run … --``, and where it is from (empty: nowhere).
    ``is_module``: it imports from its own package, and cannot be run as a file."""
    lines = [one for one in contents.launches if _resolved(one, {script}) == script]
    lines = lines or [one for one in contents.launches if (contents.root / one.script).is_file()]
    lines.sort(key=lambda one: (one.file.endswith(".md"), one.command.startswith("python")))
    for line in lines:
        if _splits(line.command):
            return line.command, line.file
    module = script.removesuffix(".py").replace("/", ".")
    name = f"-m {shlex.quote(module)}" if is_module else shlex.quote(script)
    if is_distributed:
        return f"torchrun --standalone --nproc-per-node gpu {name}", ""
    return f"python {name}", ""


def _splits(command: str) -> bool:
    try:
        return bool(shlex.split(command))
    except ValueError:
        return False
