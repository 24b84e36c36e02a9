"""Ranks of a gloo group, as processes that do what they are asked, all at once.

    python -m bench.ranks MODULE RANK WORLD_SIZE DIRECTORY OPTIONS

``MODULE.cases(rank, world_size, directory, **options)`` names what they can do.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path


class Ranks:
    """Used from the benchmark's own process."""

    def __init__(self, module: str, *, world_size: int, directory: Path, **options: object) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "bench.ranks", module, str(rank), str(world_size)),
                    *(str(directory), json.dumps(options)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                text=True,
            )
            for rank in range(world_size)
        ]

    def ask(self, case: str) -> float:
        """Every rank does it; the answer is the largest of theirs."""
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

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()


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
