"""What scontrol prints, as structs: text of every version since 22.05, JSON of 23.02 and newer.

Text comes with ``SLURM_TIME_FORMAT=%s``: times are seconds since 1970, or a word for none.
JSON numbers are plain in 22.05 and ``{"set": …, "infinite": …, "number": …}`` later, where
``job_state`` is a list of a state and flags (https://slurm.schedmd.com/job_state_codes.html).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from drainfsm.core.foreign import UNREADABLE
from drainfsm_adapters.lenient import whole_number

ENDING = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL",
        "OUT_OF_MEMORY", "PENDING", "PREEMPTED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
        "REVOKED", "SPECIAL_EXIT", "TIMEOUT",
    }
)  # fmt: skip
"""States in which the processes of a run are ended, or gone. Any other counts as running."""

HOSTS_MAX = 65_536
CLOSE_S = 2
"""Clocks that differ by less are taken for right: Slurm ends no job within so short a time."""

NO_LIMIT_AHEAD_S = 365 * 86_400
"""An end further ahead is Slurm's way to write "no limit"."""

_BEHIND_NAME = re.compile(r" UserId=\S+\(\d+\) GroupId=")
_FIELD = re.compile(r"(?:^|\s)([A-Z][\w/:.&-]*)=(\S*)")
_HOSTS = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_AS_OF = re.compile(r"Configuration data as of ([0-9]+)$", re.MULTILINE)
_SETTING = re.compile(r"^\s*(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job as slurmctld knows it now."""

    job_id: str
    states: frozenset[str]
    reason: str = ""
    restarts: int = 0
    requeue: bool = True
    """Whether Slurm lets it be requeued (``--no-requeue``)."""

    start_unix_s: int | None = None
    end_unix_s: int | None = None
    """Live; None: no limit, or not known."""

    preempt_unix_s: int | None = None
    """When its preemption began, while that is under way."""

    partition: str = ""
    nodes: str = ""
    """Host list expression."""

    reservation: str = ""

    @property
    def ending(self) -> bool:
        return bool(self.states & ENDING)


class SlurmNode(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    states: frozenset[str]
    reason: str = ""

    @property
    def drained(self) -> bool:
        return "DRAIN" in self.states or "DRAINED" in self.states or "DRAINING" in self.states


class SlurmReservation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    nodes: frozenset[str]
    flags: frozenset[str]
    start_unix_s: int | None
    end_unix_s: int | None


class SlurmLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the site has configured. None: not known."""

    kill_wait_s: int | None = None
    grace_s: int | None = None
    """GraceTime of the job's partition. A QOS may have another one, which scontrol hides."""

    preempt_mode: str = ""
    """Of the job's partition: OFF, REQUEUE, CANCEL, SUSPEND …"""

    @property
    def preemption_requeues(self) -> bool:
        return "REQUEUE" in self.preempt_mode.upper()


Timed = TypeVar("Timed", SlurmJob, SlurmReservation)


class RunFacts:
    """What was read of the run and its site so far."""

    def __init__(self) -> None:
        self.limits = SlurmLimits()
        self.limits_known = False
        self.end_unix_s: int | None = None
        """EndTime, as last stated."""

        self.shortened = False
        """It was later before."""

        self.grace_end_unix_s: int | None = None
        """The end that the run's preemption announced."""

    def configured(self, limits: SlurmLimits) -> None:
        self.limits, self.limits_known = limits, True

    def job(self, job: SlurmJob) -> None:
        if job.end_unix_s is not None:
            if self.end_unix_s is not None and job.end_unix_s != self.end_unix_s:
                self.shortened = job.end_unix_s < self.end_unix_s
            self.end_unix_s = job.end_unix_s
        if job.preempt_unix_s is not None and not job.ending:
            self.grace_end_unix_s = job.end_unix_s


def job_of(output: str, *, job_id: str, job_name: str = "") -> SlurmJob | None:
    """The job of that id among all that were printed; None: it is not there. ``job_name``: as it
    was submitted, so that a name that looks like fields is skipped.

    Raises:
        ValueError: it begins like JSON, but is not.
    """
    if output.lstrip().startswith("{"):
        try:
            listing = json.loads(output)  # it may hold Infinity, which msgspec refuses
        except UNREADABLE as error:
            raise ValueError(str(error)) from error
        listed = listing.get("jobs") if isinstance(listing, dict) else None
        jobs = listed if isinstance(listed, list) else []
        own = (one for one in jobs if isinstance(one, dict) and str(one.get("job_id")) == job_id)
        return next(map(_json_job, own), None)
    for line in output.splitlines():
        fields = _job_fields(line, job_name)
        if fields.get("JobId") == job_id:
            return _text_job(fields)
    return None


def nodes_of(output: str) -> tuple[SlurmNode, ...]:
    found = []
    for line in output.splitlines():
        fields = _fields(line)
        if "NodeName" not in fields:
            continue
        reason = line.partition(" Reason=")[2].partition(" [")[0].strip()
        states = frozenset(re.split(r"[+*~#!%$@^-]+", fields.get("State", "").upper()))
        found.append(SlurmNode(name=fields["NodeName"], states=states, reason=reason))
    return tuple(found)


def reservations_of(output: str) -> tuple[SlurmReservation, ...]:
    found = []
    for line in output.splitlines():
        fields = _fields(line)
        if "ReservationName" in fields:
            found.append(
                SlurmReservation(
                    name=fields["ReservationName"],
                    nodes=frozenset(hosts_of(_named(fields.get("Nodes", "")))),
                    flags=frozenset(fields.get("Flags", "").upper().split(",")),
                    start_unix_s=_seconds(fields.get("StartTime", "")),
                    end_unix_s=_seconds(fields.get("EndTime", "")),
                )
            )
    return tuple(found)


def hosts_of(expression: str) -> Iterator[str]:
    """``n[01-03,7],m5`` as names. Anything else is its own name."""
    for part in _HOSTS.findall(expression):
        head, bracket, rest = part.partition("[")
        inside, _, tail = rest.partition("]")
        if not bracket:
            yield part
            continue
        for span in inside.split(","):
            first, _, last = span.partition("-")
            low, high = whole_number(first), whole_number(last or first)
            if low is None or high is None or high - low > HOSTS_MAX:
                continue
            for number in range(low, high + 1):
                for more in hosts_of(tail) if tail else ("",):
                    yield f"{head}{number:0{len(first)}d}{more}"


def limits_of(*, config: str, partition: str) -> SlurmLimits:
    """From ``scontrol show config`` and ``scontrol show partition -o``; either may be empty."""
    settings = dict(_SETTING.findall(config))
    fields = _fields(partition)
    return SlurmLimits(
        kill_wait_s=_leading_number(settings.get("KillWait", "")),
        grace_s=_leading_number(fields.get("GraceTime", "")),
        preempt_mode=fields.get("PreemptMode", "") or settings.get("PreemptMode", ""),
    )


def ahead_s(config: str, *, sent_unix_ms: int, received_unix_ms: int) -> int:
    """How far slurmctld's clock is ahead of ours, by ``scontrol show config``, rounded up: its
    times less that are never late. 0: within ``CLOSE_S``, or it does not tell."""
    found = _AS_OF.match(config)
    stated = None if found is None else whole_number(found[1])
    if stated is None:
        return 0
    low_ms, high_ms = stated * 1_000 - received_unix_ms, (stated + 1) * 1_000 - sent_unix_ms
    if low_ms <= CLOSE_S * 1_000 and high_ms >= -CLOSE_S * 1_000:
        return 0
    return -(-high_ms // 1_000)


def by_our_clock(record: Timed, ahead_s: int) -> Timed:
    """Slurm's nodes may be minutes apart, and Slurm still works."""
    names = (name for name in record.__struct_fields__ if name.endswith("_unix_s"))
    stated = {name: value for name in names if (value := getattr(record, name)) is not None}
    moved = {name: value - ahead_s for name, value in stated.items()}
    return msgspec.structs.replace(record, **moved) if ahead_s else record


def _fields(line: str) -> dict[str, str]:
    """First value of every key: what users may write freely stands behind the fields that count."""
    fields: dict[str, str] = {}
    for key, value in _FIELD.findall(line):
        fields.setdefault(key, value)
    return fields


def _job_fields(line: str, job_name: str) -> dict[str, str]:
    """A job's name stands before the fields that count, and may look like them."""
    head, mark, tail = line.partition(" JobName=")
    if job_name and tail.startswith(f"{job_name} UserId="):
        tail = tail.removeprefix(job_name)
    elif behind := _BEHIND_NAME.search(tail):
        tail = tail[behind.start() :]
    return _fields(head) | {"JobName": job_name} | _fields(tail) if mark else _fields(line)


def _text_job(fields: dict[str, str]) -> SlurmJob:
    return SlurmJob(
        job_id=fields["JobId"],
        states=frozenset(fields.get("JobState", "UNKNOWN").upper().split("+")),
        reason=fields.get("Reason", ""),
        restarts=_leading_number(fields.get("Restarts", "")) or 0,
        requeue=fields.get("Requeue", "1") != "0",
        start_unix_s=_seconds(fields.get("StartTime", "")),
        end_unix_s=_seconds(fields.get("EndTime", "")),
        preempt_unix_s=_seconds(fields.get("PreemptTime", "")),
        partition=fields.get("Partition", ""),
        nodes=_named(fields.get("NodeList", "")),
        reservation=_named(fields.get("Reservation", "")),
    )


def _json_job(job: dict[str, Any]) -> SlurmJob:
    """Any value may be null, as the parsers with ``+complex`` have it."""
    states = job.get("job_state")
    listed: Iterable[Any] = states if isinstance(states, list) else [states]
    requeue = job.get("requeue")
    return SlurmJob(
        job_id=str(job["job_id"]),
        states=frozenset(s.upper() for s in listed if isinstance(s, str)) or frozenset({"UNKNOWN"}),
        reason=_text(job.get("state_reason")),
        restarts=_number(job.get("restart_cnt")) or 0,
        requeue=True if requeue is None else bool(requeue),
        start_unix_s=_number(job.get("start_time")),
        end_unix_s=_number(job.get("end_time")),
        preempt_unix_s=_number(job.get("preempt_time")),
        partition=_text(job.get("partition")),
        nodes=_text(job.get("nodes")),
        reservation=_text(job.get("resv_name")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    """0, null, infinite and unset mean none."""
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and value > 0 else None


def _seconds(text: str) -> int | None:
    return whole_number(text) or None


def _leading_number(text: str) -> int | None:
    found = re.match(r"[0-9]{1,15}", text)
    return int(found[0]) if found else None


def _named(text: str) -> str:
    return "" if text in ("(null)", "None", "N/A") else text
