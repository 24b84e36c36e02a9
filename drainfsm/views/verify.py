"""Whether a log is the one that was written: its chain, record by record; the heads of it that the
checkpoint store and the attempt behind it keep; and who signed it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType

from drainfsm.core.chain import LogHead, line_digest
from drainfsm.core.codec import decode
from drainfsm.core.events import AttemptFinished, AttemptStarted, Exited, RequeueRecorded
from drainfsm.core.records import Record
from drainfsm.errors import RecordUnreadableError

if TYPE_CHECKING:
    from drainfsm.log.signing import SignersKnown

Name = tuple[str, int]
"""Job and attempt."""

Kind = Literal["removed", "changed", "inserted", "reordered", "unreadable", "unsigned", "wrong_key"]


class RawLine(msgspec.Struct, frozen=True):
    """One record of a log, as stored."""

    where: str
    data: bytes


class Anchor(msgspec.Struct, frozen=True):
    """What somebody else says of the log."""

    where: str
    head: LogHead


class Discrepancy(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the log is not as it was written."""

    kind: Kind
    position: int | None
    """Of the record in its attempt, from 0; None: it has none."""

    where: str
    detail: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt's log."""

    job_id: str
    epoch: int
    record_count: int
    repeated_count: int
    """Stored twice, byte for byte: a server that came back with less than it had was told again."""

    chained: bool
    """False: written before there was a chain; nothing can be said of it but what anchors say."""

    head: LogHead | None
    anchor_count: int
    signed_by: tuple[str, ...]
    """Public nkeys that the records name; checked where signers were given."""

    ended: bool
    """So says the log. If not, the attempt is running, was lost or fenced, or the log was cut off:
    then the store knows more."""

    findings: tuple[Discrepancy, ...]


class _Found(msgspec.Struct):
    """A record, wherever it stands."""

    record: Record
    line: RawLine
    digest: str
    places: list[int]

    @property
    def where(self) -> str:
        return self.line.where


def verify_attempts(
    lines: Iterable[RawLine],
    anchors: dict[int, list[Anchor]],
    *,
    job_id: str | None = None,
    signers: SignersKnown | None = None,
    keeps_all: bool = False,
) -> list[Verified]:
    """``lines``: in the order of the log; ``anchors``: by attempt; ``job_id``: of what must be of
    one job; ``signers``: who may have written it. None: whoever says that he has. ``keeps_all``: an
    attempt between others must be there if the next one names it."""
    attempts: dict[Name, dict[str, _Found]] = defaultdict(dict)
    repeated: dict[Name, int] = defaultdict(int)
    strange: list[Discrepancy] = []
    for place, line in enumerate(lines):
        try:
            record = decode(line.data)
        except RecordUnreadableError as error:
            finding = Discrepancy(
                kind="unreadable", position=None, where=line.where, detail=f"{error}"
            )
            strange.append(finding)
            continue
        if job_id not in (None, record.job_id):
            told = f"it says that it is of job {record.job_id}"
            strange.append(
                Discrepancy(kind="inserted", position=None, where=line.where, detail=told)
            )
            continue
        digest, name = line_digest(line.data), (record.job_id, record.epoch)
        known = attempts[name].setdefault(digest, _Found(record, line, digest, []))
        repeated[name] += bool(known.places)
        known.places.append(place)
    for epoch in anchors:
        if not any(name[1] == epoch for name in attempts):
            owner = job_id or next((name[0] for name in attempts), "")
            attempts[owner, epoch] = {}
    if keeps_all:
        _add_missing(attempts)
    known_heads = {
        name: [*anchors.get(name[1], []), *_named_by_the_next(name, attempts)] for name in attempts
    }
    found = [
        _verify(list(attempts[name].values()), name, repeated[name], known_heads[name], signers)
        for name in sorted(attempts)
    ]
    if strange:  # it belongs to no attempt for sure: the first is as good as any
        first = found[0] if found else _verify([], (job_id or "", 0), 0, [], None)
        first = msgspec.structs.replace(first, findings=(*strange, *first.findings))
        found = [first, *found[1:]]
    return found


def _add_missing(attempts: dict[Name, dict[str, _Found]]) -> None:
    """Those that the next one names, less the first of a job: it may be from before this log."""
    for job_id, epoch in sorted(attempts):
        name = (job_id, epoch - 1)
        earlier = any(job == job_id and other < epoch - 1 for job, other in attempts)
        if earlier and name not in attempts and _named_by_the_next(name, attempts):
            attempts[name] = {}


def _named_by_the_next(name: Name, attempts: dict[Name, dict[str, _Found]]) -> list[Anchor]:
    """The requeue record that the attempt behind this one began with."""
    job_id, epoch = name
    behind = attempts.get((job_id, epoch + 1), {}).values()
    started = [
        event.restore
        for one in behind
        if one.record.follows == 0
        for event in one.record.events
        if isinstance(event, AttemptStarted) and event.restore is not None
    ]
    where = f"the start of attempt {epoch + 1}"
    return [
        Anchor(where, restore.log)
        for restore in started
        if restore.epoch == epoch and not isinstance(restore.log, UnsetType)
    ]


def _verify(
    found: Sequence[_Found],
    name: Name,
    repeated: int,
    anchors: Sequence[Anchor],
    signers: SignersKnown | None,
) -> Verified:
    chain = _Chain(found, anchors)
    chained = any(one.record.before is not UNSET for one in found)
    if chained or not found:
        chain.walk()
    else:
        chain.take_as_it_is()
    for anchor in anchors:
        chain.compare(anchor)
    if signers is not None:
        chain.check_signatures(signers)
    last = chain.kept.get(max(chain.kept, default=-1))
    head = LogHead(count=last.record.follows + 1, digest=last.digest) if last is not None else None
    return Verified(
        job_id=name[0],
        epoch=name[1],
        record_count=len(found),
        repeated_count=repeated,
        chained=chained,
        head=head,
        anchor_count=len(anchors),
        signed_by=chain.signed_by(),
        ended=chain.ended(),
        findings=tuple(chain.findings),
    )


class _Chain:
    """Goes along the positions of one log, and takes at each the record that both neighbours name,
    as far as there is one."""

    def __init__(self, found: Sequence[_Found], anchors: Sequence[Anchor]) -> None:
        self.findings: list[Discrepancy] = []
        self.kept: dict[int, _Found] = {}
        """The log as it was written, so far as it can be told, by position."""

        self._found = found
        self._known = {anchor.head.digest for anchor in anchors}
        self._at: dict[int, list[_Found]] = defaultdict(list)
        for one in found:
            self._at[one.record.follows].append(one)

    def take_as_it_is(self) -> None:
        """Written before there was a chain."""
        self.kept = {one.record.follows: one for one in self._found}

    def walk(self) -> None:
        for position in sorted(at for at in self._at if at < 0):
            for one in self._at[position]:
                self._tell("inserted", one, "no record has a place before the first")
        position, last = 0, -1
        before: str | None = ""
        end = max(self._at, default=-1)
        while position <= end:
            candidates = self._at.get(position, [])
            if not candidates:
                position, before = self._skip(position), None
                continue
            chosen = self._choose(candidates, before)
            if before is not None and chosen.record.before != before:
                self._tell_break(position, chosen)
            for other in candidates:
                if other is not chosen:
                    self._tell("inserted", other, "the chain goes by another record at its place")
            place = next((place for place in chosen.places if place > last), None)
            if place is None:
                self._tell("reordered", chosen, "it stands before a record that it follows")
            last = last if place is None else place
            self.kept[position] = chosen
            position, before = position + 1, chosen.digest

    def _skip(self, position: int) -> int:
        after = min(at for at in self._at if at > position)
        missing = (
            f"record {position} is"
            if after == position + 1
            else (f"records {position} to {after - 1} are")
        )
        where = f"before {self._at[after][0].where}"
        finding = Discrepancy(
            kind="removed", position=position, where=where, detail=f"{missing} missing"
        )
        self.findings.append(finding)
        return after

    def _choose(self, candidates: Sequence[_Found], before: str | None) -> _Found:
        named = {one.record.before for one in self._at.get(candidates[0].record.follows + 1, [])}

        def fits(one: _Found) -> tuple[bool, bool]:
            follows = before is None or one.record.before == before
            return (follows, one.digest in named or one.digest in self._known)

        return max(candidates, key=fits)

    def _tell_break(self, position: int, chosen: _Found) -> None:
        if chosen.record.before is UNSET or position == 0:
            self._tell("changed", chosen, "it does not say what it follows")
            return
        earlier = self.kept[position - 1]
        detail = f"record {position} ({chosen.where}) was written behind another one"
        self._tell("changed", earlier, detail)

    def compare(self, anchor: Anchor) -> None:
        count = anchor.head.count
        there = self.kept.get(count - 1)
        if there is None:
            have = max(self.kept, default=-1) + 1
            finding = Discrepancy(
                kind="removed",
                position=count - 1,
                where="the end",
                detail=f"{anchor.where} knows {count} records, {have} are here",
            )
            self.findings.append(finding)
        elif there.digest != anchor.head.digest:
            self._tell("changed", there, f"{anchor.where} knows another record at its place")

    def check_signatures(self, signers: SignersKnown) -> None:
        """A good signature stands for its record and for all before it, as far as each names the
        one before."""
        named: str | UnsetType = UNSET
        unsigned: list[_Found] = []
        changed = {finding.position for finding in self.findings if finding.kind == "changed"}
        chain_findings, self.findings = self.findings, []
        for position in sorted(self.kept, reverse=True):
            one = self.kept[position]
            proven = one.digest == named
            verdict = "good" if proven else signers.verdict(one.line.data, one.record.signed)
            if verdict == "good":
                named = one.record.before
            elif position in changed:
                continue
            elif verdict == "unsigned":
                unsigned.append(one)
            elif verdict == "wrong_key":
                self._tell(
                    "wrong_key", one, f"signed by {_signer(one)}, who is none of the signers"
                )
            else:
                self._tell("changed", one, "it is not what was signed")
        if unsigned:
            others = len(unsigned) - 1
            more = f", nor for {others:,} more" if others else ""
            self._tell("unsigned", unsigned[-1], f"no signature stands for it{more}")
        self.findings = [*chain_findings, *reversed(self.findings)]

    def ended(self) -> bool:
        kinds = {type(event) for one in self.kept.values() for event in one.record.events}
        return RequeueRecorded in kinds and not kinds.isdisjoint((Exited, AttemptFinished))

    def signed_by(self) -> tuple[str, ...]:
        return tuple(sorted({_signer(one) for one in self.kept.values()} - {""}))

    def _tell(self, kind: Kind, one: _Found, detail: str) -> None:
        position = one.record.follows
        self.findings.append(
            Discrepancy(kind=kind, position=position, where=one.where, detail=detail)
        )


def _signer(one: _Found) -> str:
    signed = one.record.signed
    return "" if isinstance(signed, UnsetType) else signed.partition(".")[0]
