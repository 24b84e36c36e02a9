"""Starts the ranks of one node, hands a SIGTERM on, and waits: the least of a launcher.

python -m bench.launcher WORLD_SIZE CMD...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile


def main() -> int:
    world_size = sys.argv[1]
    with tempfile.TemporaryDirectory() as directory:
        common = {
            **os.environ,
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": world_size,
            "BENCH_RENDEZVOUS": f"{directory}/rendezvous",
            "OMP_NUM_THREADS": "1",
        }
        ranks = [
            subprocess.Popen(sys.argv[2:], env=common | {"RANK": str(rank)})
            for rank in range(int(world_size))
        ]

        def hand_on(*_: object) -> None:
            for rank in ranks:
                rank.terminate()

        signal.signal(signal.SIGTERM, hand_on)
        return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
