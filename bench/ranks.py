"""Ranks of a gloo group, as processes that do what they are asked, all at once.

    python -m bench.ranks MODULE RANK WORLD_SIZE DIRECTORY OPTIONS

``MODULE.cases(rank, world_size, directory, **options)`` names what they can do.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Self


class Asked:
    """Processes that answer every line with a number. A context: at its end they have ended,
    and are not waited for where it ends by an exception."""

    def __init__(self, commands: Sequence[Sequence[str]], **environment: str) -> None:
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **environment},
                text=True,
            )
            for command in commands
        ]

    def ask(self, case: str) -> float:
        """Every process does it; the answer is the largest of theirs."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(case + "\n")
            process.stdin.flush()
        return max(self._answer(process, case) for process in self._processes)

    def _answer(self, process: subprocess.Popen[str], case: str) -> float:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"a rank died during {case!r}: exit code {process.wait()}")
        return float(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for process in self._processes:
            assert process.stdin is not None
            if kind is not None:
                process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes:
            process.wait()


class Ranks(Asked):
    """Used from the benchmark's own process."""

    def __init__(self, module: str, *, world_size: int, directory: Path, **options: object) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        start = [sys.executable, "-m", "bench.ranks", module]
        given = [str(world_size), str(directory), json.dumps(options)]
        commands = [[*start, str(rank), *given] for rank in range(world_size)]
        super().__init__(commands, OMP_NUM_THREADS="1")


def main() -> None:
    import torch
    import torch.distributed as dist

    module, rank, world_size, directory, options = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/rendezvous",
        rank=int(rank),
        world_size=int(world_size),
    )
    make = importlib.import_module(module).cases
    cases = make(int(rank), int(world_size), Path(directory), **json.loads(options))
    for line in sys.stdin:
        answers.write(f"{cases[line.strip()]()!r}\n")
        answers.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
