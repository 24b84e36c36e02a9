"""Are the histories in these files and folders behaviours of the model? TLC judges.

    python specs/histories.py tests/replay/histories
    python specs/histories.py exported.jsonl ~/.local/state/drainfsm

Takes exported files and journals; folders are searched for both. Exit code 1 if one is refused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from drainfsm_kit import tlc
from drainfsm_kit.conformance import histories_in, refusals

MODELS = Path(__file__).parent / "models"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="files or folders")
    histories = [found for path in parser.parse_args().paths for found in histories_in(path)]
    with tempfile.TemporaryDirectory() as scratch:
        refused = refusals(histories, models=MODELS, scratch=Path(scratch))
    for index, why in refused.items():
        first = histories[index][0]
        print(f"job {first.job_id}, epoch {first.epoch}: the model does not have {why}")
    print(f"{len(histories)} histories, {len(refused)} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except tlc.TlcMissingError as error:
        sys.exit(str(error))
