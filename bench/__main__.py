"""Run the benchmarks.

python -m bench                 all of them: results.json and one line in history.jsonl
python -m bench step decode     only these topics; nothing is stored without --keep
python -m bench --quick         the subset that CI runs; fails when a ratio leaves its gate
python -m bench --list
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time

from bench import report
from bench.harness import Size, Topic, TopicResult, measure

TOPICS = (
    "step",
    "decode",
    "fleet",
    "journal",
    "stream",
    "append",
    "stop",
    "notice",
    "save",
    "fragments",
    "exchange",
    "restore",
    "objects",
    "drain",
    "killed",
    "rest",
    "idle",
    "startup",
)


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what a topic has opened is closed
    topics = [_topic(name) for name in options.topics or TOPICS]
    if options.list:
        for topic in topics:
            print(f"{topic.name:10}{topic.title}{'' if topic.quick else ' (not in --quick)'}")
        return 0
    if options.quick and not options.topics:
        topics = [topic for topic in topics if topic.quick]
    size = Size(quick=options.quick, rounds=options.rounds)
    keep = options.keep or not (options.topics or options.quick or options.rounds)
    found = []
    for topic in topics:
        found.append(_run(topic, size, retry=options.quick))
        if keep:
            report.store(report.results(found[-1:], command="make bench"), order=TOPICS)
    broken = [(t.name, r) for t in found for r in t.ratios if r.gate_held is False]
    for name, ratio in broken:
        print(f"gate broken: {name}: {ratio.name}: {report.number(ratio.spread.median)}")
    return 1 if broken else 0


def _run(topic: Topic, size: Size, *, retry: bool) -> TopicResult:
    """In the quick subset a topic that breaks a gate is measured again, with twice the rounds:
    what is broken stays broken."""
    print(f"measuring {topic.name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    found = measure(topic, size)
    print(report.markdown(found), flush=True)
    if retry and any(ratio.gate_held is False for ratio in found.ratios):
        print(f"once more, with more rounds ({time.monotonic() - began:.0f} s)", flush=True)
        found = measure(topic, Size(quick=True, rounds=2 * found.rounds))
        print(report.markdown(found), flush=True)
    return found


def _topic(name: str) -> Topic:
    found = importlib.import_module(f"bench.{name}").TOPIC
    assert isinstance(found, Topic)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topics", nargs="*", choices=[[], *TOPICS], metavar="TOPIC")
    parser.add_argument("--quick", action="store_true", help="less work, and gates that must hold")
    parser.add_argument("--rounds", type=int, default=0, help="so many rounds, and store nothing")
    parser.add_argument("--keep", action="store_true", help="store these topics' results too")
    parser.add_argument("--list", action="store_true", help="say which topics there are")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
