"""A launcher without torch: ranks in sessions of their own, exit codes flattened to 0 or 1."""

from __future__ import annotations

import os
import subprocess
import sys


def main(argv: list[str] | None = None) -> int:
    """``COUNT COMMAND…``. The node's rank comes from NODE_RANK, the nodes' count from NNODES."""
    count, *command = sys.argv[1:] if argv is None else argv
    local_world_size = int(count)
    node_rank = int(os.environ.get("NODE_RANK", "0"))
    node_count = int(os.environ.get("NNODES", "1"))
    ranks = []
    for local_rank in range(local_world_size):
        variables = {
            "RANK": str(node_rank * local_world_size + local_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(node_count * local_world_size),
            "LOCAL_WORLD_SIZE": str(local_world_size),
        }
        ranks.append(
            subprocess.Popen(command, env={**os.environ, **variables}, start_new_session=True)
        )
    codes = [rank.wait() for rank in ranks]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
