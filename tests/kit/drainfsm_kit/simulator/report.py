"""What simulations found, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drainfsm.core.events import UnknownFact, kind_of
from drainfsm.core.records import Record
from drainfsm.core.state import Phase
from drainfsm_kit.simulator import entered
from drainfsm_kit.simulator.machine import BEGIN_UNIX_MS
from drainfsm_kit.simulator.plan import Event, GivenNotice, Happening
from drainfsm_kit.simulator.scale import Cost
from drainfsm_kit.simulator.seeds import FAULTS, PHASES
from drainfsm_kit.simulator.shrink import Shrunk
from drainfsm_kit.simulator.simulation import Result
from drainfsm_kit.simulator.tally import Tally

OUTCOMES = ("saved", "skipped", "abandoned", "cancelled", "lost", "fenced")
WORLD_FAULTS = ("clock_skew", "broker_leak", "torn_tail")
"""Not planned one by one: they come with the machines, the broker, and processes that die."""

RENAMED = {"store_lies": "file_lost"}
NOTICES = ("hard", "soft", "withdrawn")


def fault_classes() -> list[str]:
    """Every class that a simulation can count."""
    return sorted({RENAMED.get(name, name) for name in FAULTS} | set(WORLD_FAULTS))


def missing(tally: Tally) -> list[str]:
    """Outcomes, faults and states of notices that did not occur: too few seeds, or a hole."""
    found = [f"outcome {name}" for name in OUTCOMES if not tally.outcomes[name]]
    found += [f"fault {name}" for name in fault_classes() if not tally.faults[name]]
    for phase in PHASES:
        for kind in NOTICES:
            if phase is not Phase.LOST and not _heard(tally, kind, phase):
                found.append(f"a {kind} notice while {phase}")
    return found


def _heard(tally: Tally, kind: str, phase: str) -> int:
    rows = tally.notices.items()
    return sum(n for (name, when), n in rows if name.endswith(kind) and when == phase)


def summary(tally: Tally) -> Iterator[str]:
    counts = tally.counts
    yield (
        f"{counts['simulations']} simulations, {counts['attempts']} attempts, "
        f"{counts['processes']} processes, {counts['virtual seconds']} simulated seconds"
    )
    yield (
        f"{counts['records']} records, {counts['messages']} messages between nodes, "
        f"{counts['store requests']} requests to the store, {counts['callbacks']} callbacks"
    )
    if tally.entered:
        yield from entered.summary(tally.entered)
    yield ""
    yield "outcomes: " + ", ".join(f"{name} {n}" for name, n in sorted(tally.outcomes.items()))
    yield ""
    yield f"{'fault':18}{'hits':>9}{'seeds':>8}"
    for name in fault_classes():
        yield f"{name:18}{tally.faults[name]:>9}{tally.fault_seeds[name]:>8}"
    yield ""
    phases = [phase for phase in PHASES if any(p == phase for _, p in tally.notices)]
    yield f"{'heard while':20}" + "".join(f"{phase:>11}" for phase in phases)
    for name in sorted({name for name, _ in tally.notices}):
        yield f"{name:20}" + "".join(f"{tally.notices[name, phase]:>11}" for phase in phases)


# --- a failure ----------------------------------------------------------------------------------


def failure(shrunk: Shrunk) -> Iterator[str]:
    result, seed = shrunk.result, shrunk.plan.seed
    yield f"seed {seed}: {result.problems[0]}"
    for problem in result.problems[1:4]:
        yield f"  also: {problem}"
    yield f"  with {len(shrunk.kept)} of {len(shrunk.plan.events)} events:"
    for number, event in shrunk.plan.numbered():
        if number in shrunk.kept:
            yield f"    {number:>2}  {told(event)}"
    world = result.plan.world
    yield (
        f"  {world.node_count} node(s) of {world.ranks_per_node} rank(s), at most "
        f"{world.attempts_max} attempt(s); clocks off by {list(world.skews_ms[:4])} ms"
    )
    yield from history(result)
    kept = ",".join(str(number) for number in sorted(shrunk.kept)) or "none"
    yield "  reproduce:"
    yield f"    python -m drainfsm_kit.simulator --seed {seed} --keep {kept}"


def told(event: Event) -> str:
    since = "from its start" if event.phase is None else f"after {event.phase}"
    when = f"attempt {event.attempt}, {event.after_ms} ms {since}, node {event.node}"
    match event:
        case Happening():
            amount = f", {event.amount}" if event.amount else ""
            return f"{when}: {event.what} ({event.for_ms} ms{amount}, rank {event.rank})"
        case GivenNotice(withdraw=True):
            return f"{when}: {event.what}/{event.native_id} is withdrawn"
        case GivenNotice():
            deadline = "no deadline" if event.in_ms is None else f"deadline in {event.in_ms} ms"
            kind = "HARD" if event.hard else "SOFT"
            return f"{when}: {kind} {event.what}/{event.native_id}, {deadline}, x{event.times}"


def history(result: Result) -> Iterator[str]:
    """The job's log. Instants are by the clock of each attempt's node 0."""
    for epoch, records in result.history:
        yield f"  epoch {epoch}:"
        for record in records:
            yield f"    {record.at_unix_ms - BEGIN_UNIX_MS:>8} ms  {', '.join(_kinds(record))}"


def _kinds(record: Record) -> Iterator[str]:
    for event in record.events:
        kind = kind_of(event)
        reason = "" if isinstance(event, UnknownFact) else getattr(event, "reason", "")
        yield f"{kind} ({reason})" if reason else kind


# --- scale --------------------------------------------------------------------------------------


def table(costs: Sequence[Cost]) -> Iterator[str]:
    heads = (
        *("ranks", "nodes", "messages", "per node", "kB", "by ranks", "decides", "records"),
        *("kB", "largest", "coord. ms", "saved ms", "exited ms", "wall s"),
    )
    yield "".join(f"{head:>10}" for head in heads)
    for cost in costs:
        others = max(1, cost.node_count - 1)
        row: tuple[object, ...] = (
            *(cost.rank_count, cost.node_count, cost.message_count),
            *(f"{cost.message_count / others:.1f}", cost.message_bytes // 1_000),
            *(cost.rank_message_count, cost.decide_count, cost.record_count),
            *(cost.record_bytes // 1_000, cost.largest_record_bytes, cost.coordinator_ms),
            *(cost.saved_ms, cost.exited_ms, f"{cost.wall_ms / 1_000:.1f}"),
        )
        yield "".join(f"{value!s:>10}" for value in row)
