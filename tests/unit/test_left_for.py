"""What an earlier attempt on this machine has left for is no news to the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drainfsm.adapter import Notice, NoticeClass
from drainfsm.runtime.agent.adapters import Sink
from drainfsm.runtime.agent.left_for import (
    STALE_MS,
    LeftFor,
    judged,
    remembered_as,
    remembered_deadline,
)

NOW = 1_800_000_000_000
HARD, SOFT = NoticeClass.HARD, NoticeClass.SOFT


def notice(notice_class: NoticeClass = SOFT, in_ms: int | None = None, **changed: Any) -> Notice:
    fields = {
        "source": "aws",
        "native_id": "i-1/event",
        "cause": "host_maintenance",
        "notice_class": notice_class,
        "deadline_unix_ms": None if in_ms is None else NOW + in_ms,
        "received_unix_ms": NOW,
        **changed,
    }
    return Notice(**fields)


def memory(directory: Path, *, node_rank: int = 0) -> LeftFor:
    return LeftFor(directory, job="llm", node_rank=node_rank)


def after(directory: Path, left: Notice, now: Notice, *, later_ms: int = 60_000) -> Notice:
    """What becomes of ``now`` in the attempt after the one that left for ``left``."""
    memory(directory).add({remembered_as(left): remembered_deadline(left)})
    known = memory(directory, node_rank=1).read()
    return judged(now, known, now_unix_ms=NOW + later_ms)


def test_what_nobody_has_left_for_is_news() -> None:
    for given in (notice(), notice(HARD, 1_000), notice(standing=True)):
        assert judged(given, {}, now_unix_ms=NOW) == given


@pytest.mark.parametrize(
    ("left", "now"),
    [
        (notice(in_ms=120_000, assumed=True), notice(in_ms=150_000, assumed=True, standing=True)),
        (notice(), notice(standing=True)),
        (notice(in_ms=30_000), notice(standing=True, assumed=True)),
        (notice(in_ms=30_000), notice(in_ms=30_000)),
        (notice(HARD, 30_000), notice(HARD, 30_000, standing=True)),
        (notice(HARD, 30_000, assumed=True), notice(HARD, 90_000, standing=True, assumed=True)),
        (notice(native_id="i-1/event~2"), notice(standing=True)),
    ],
    ids=[
        "advice without an instant",
        "a state without one",
        "a window that has opened since",
        "a window that is no other",
        "an interruption that did not come",
        "an edge whose age is not known",
        "a revision",
    ],
)
def test_what_still_stands_is_recorded_only(tmp_path: Path, left: Notice, now: Notice) -> None:
    found = after(tmp_path, left, now)
    assert found.advisory
    assert "has left this machine for it already" in found.detail


@pytest.mark.parametrize(
    ("left", "now"),
    [
        (notice(in_ms=30_000), notice(in_ms=3_600_000)),
        (notice(in_ms=30_000), notice(HARD, 90_000)),
        (notice(), notice(standing=False)),
        (notice(), notice(native_id="i-2/event", standing=True)),
        (notice(HARD, 120_000), notice(HARD, 120_000, standing=True)),
    ],
    ids=[
        "moved",
        "it hardened",
        "it came while this attempt ran",
        "another machine's",
        "it really goes",
    ],
)
def test_what_is_new_or_really_comes_is_left_for_again(
    tmp_path: Path, left: Notice, now: Notice
) -> None:
    assert not after(tmp_path, left, now).advisory


def test_an_edge_that_was_left_for_keeps_its_deadline(tmp_path: Path) -> None:
    """The machine goes in its own time, not in a new lead from when it was read again."""
    left = notice(HARD, 120_000)
    now = notice(HARD, 180_000, standing=True, assumed=True)
    found = after(tmp_path, left, now)
    assert (found.advisory or False, found.deadline_unix_ms) == (False, NOW + 120_000)


def test_an_old_instant_that_has_not_come_true_is_no_news_to_anybody() -> None:
    old = notice(HARD, -STALE_MS - 1, standing=True)
    found = judged(old, {}, now_unix_ms=NOW)
    assert found.advisory
    assert "and this machine lives" in found.detail
    late = notice(HARD, -STALE_MS - 1, standing=False)  # heard while the source was watched
    assert judged(late, {}, now_unix_ms=NOW) == late


@pytest.mark.parametrize("content", [b"", b"[]", b'{"aws/i-1/event": "x"}', b"\xff"])
def test_a_file_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    memory(tmp_path).add({"aws/i-1/event": None})
    for path in (tmp_path / "llm" / "left-for").iterdir():
        path.write_bytes(content)
    assert memory(tmp_path).read() == {}


class Heard:
    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.taken_back: list[str] = []

    def hear(self, notice: Notice) -> None:
        self.notices.append(notice)

    def take_back(self, source: str, native_id: str, reason: str) -> None:
        self.taken_back.append(native_id)

    def source_state(self, source: str, since_unix_ms: int | None, detail: str) -> None:
        raise AssertionError("nothing is unknown here")


def test_advice_is_handed_on_and_not_taken_back() -> None:
    heard = Heard()
    sink = Sink(heard, judged=lambda notice: notice)
    advice, other = notice(advisory=True), notice(native_id="i-1/other")
    for given in (advice, other, advice):
        sink.notice(given)
    assert heard.notices == [advice, other]
    for given in (advice, other):
        sink.withdraw(source="aws", native_id=given.native_id, reason="over")
    assert heard.taken_back == ["i-1/other"]
