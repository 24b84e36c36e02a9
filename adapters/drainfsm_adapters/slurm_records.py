"""What scontrol prints, as structs: text of every version since 22.05, JSON of 23.02 and newer.

Text comes with ``SLURM_TIME_FORMAT=%s``: times are seconds since 1970, or a word for none.
JSON numbers are plain in 22.05 and ``{"set": …, "infinite": …, "number": …}`` later, where
``job_state`` is a list of a state and flags (https://slurm.schedmd.com/job_state_codes.html).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from drainfsm.core.foreign import read_json

ENDING = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL",
        "OUT_OF_MEMORY", "PENDING", "PREEMPTED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
        "REVOKED", "SPECIAL_EXIT", "TIMEOUT",
    }
)  # fmt: skip
"""States in which the processes of a run are ended, or gone. Any other counts as running."""

NO_LIMIT_AHEAD_S = 365 * 86_400
"""An end further ahead is Slurm's way to write "no limit"."""

DIGITS_MAX = 18
"""A number with more of them is none of Slurm's."""

_FIELD = re.compile(r"(?:^|\s)([A-Z][\w/:.&-]*)=(\S*)")
_SETTING = re.compile(r"^\s*(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job as slurmctld knows it now."""

    job_id: str
    states: frozenset[str]
    reason: str = ""
    restarts: int = 0
    requeue: bool = True
    """Whether Slurm lets it be requeued (``--no-requeue``)."""

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


class _Listing(msgspec.Struct, frozen=True):
    """What ``scontrol --json`` prints."""

    jobs: list[dict[str, Any]] = []


def job_of(output: str, *, job_id: str) -> SlurmJob | None:
    """The job of that id among all that were printed; None: it is not there.

    Raises:
        ValueError: it begins like JSON, and is no listing of jobs.
    """
    if output.lstrip().startswith("{"):
        listed = read_json(output, _Listing, ValueError).jobs
        return next((_json_job(one) for one in listed if str(one.get("job_id")) == job_id), None)
    for line in output.splitlines():
        fields = _fields(line, behind=" UserId=")
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


def reservation_end_unix_s(output: str) -> int | None:
    """Of the first reservation that was printed."""
    return _seconds(_fields(output.partition("\n")[0]).get("EndTime", ""))


def limits_of(*, config: str, partition: str) -> SlurmLimits:
    """From ``scontrol show config`` and ``scontrol show partition -o``; either may be empty."""
    settings = dict(_SETTING.findall(config))
    fields = _fields(partition)
    return SlurmLimits(
        kill_wait_s=_leading_number(settings.get("KillWait", "")),
        grace_s=_leading_number(fields.get("GraceTime", "")),
        preempt_mode=fields.get("PreemptMode", "") or settings.get("PreemptMode", ""),
    )


def _fields(line: str, *, behind: str = "") -> dict[str, str]:
    """First value of every key; of keys that stand before ``behind`` only ``JobId``.

    What users write into a name or a comment may look like a field. The name stands before the
    fields that count, the comment behind them.
    """
    head, mark, tail = line.partition(behind) if behind else ("", "", line)
    fields: dict[str, str] = {}
    for part in (head.partition(" JobName=")[0], mark + tail):
        for key, value in _FIELD.findall(part):
            fields.setdefault(key, value)
    return fields


def _text_job(fields: dict[str, str]) -> SlurmJob:
    return SlurmJob(
        job_id=fields["JobId"],
        states=frozenset(fields.get("JobState", "UNKNOWN").upper().split("+")),
        reason=fields.get("Reason", ""),
        restarts=_leading_number(fields.get("Restarts", "")) or 0,
        requeue=fields.get("Requeue", "1") != "0",
        end_unix_s=_seconds(fields.get("EndTime", "")),
        preempt_unix_s=_seconds(fields.get("PreemptTime", "")),
        partition=fields.get("Partition", ""),
        nodes=_named(fields.get("NodeList", "")),
        reservation=_named(fields.get("Reservation", "")),
    )


def _json_job(job: dict[str, Any]) -> SlurmJob:
    states = job.get("job_state", "UNKNOWN")
    listed = states if isinstance(states, list) else [states]
    return SlurmJob(
        job_id=str(job["job_id"]),
        states=frozenset(str(state).upper() for state in listed),
        reason=str(job.get("state_reason", "")),
        restarts=_number(job.get("restart_cnt")) or 0,
        requeue=bool(job.get("requeue", True)),
        end_unix_s=_number(job.get("end_time")),
        preempt_unix_s=_number(job.get("preempt_time")),
        partition=str(job.get("partition", "")),
        nodes=str(job.get("nodes", "")),
        reservation=str(job.get("resv_name", "")),
    )


def _number(value: Any) -> int | None:
    """0 and what is not set or infinite mean none."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    return value if isinstance(value, int) and value > 0 else None


def _seconds(text: str) -> int | None:
    return int(text) or None if text.isdecimal() and len(text) <= DIGITS_MAX else None


def _leading_number(text: str) -> int | None:
    found = re.match(rf"\d{{1,{DIGITS_MAX}}}", text)
    return int(found[0]) if found else None


def _named(text: str) -> str:
    return "" if text in ("(null)", "None", "N/A") else text
