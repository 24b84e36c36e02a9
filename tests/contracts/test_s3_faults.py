"""An object store that is slow, forbidden, overloaded, or gives no answer."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainfsm.errors import SlotTakenError, StoreUnreachableError
from drainfsm.store import CommitLog, open_store, pace
from drainfsm.store.base import ObjectStore
from drainfsm.store.pace import StorePace
from drainfsm.store.streams import PART_BYTES as PART_SIZES
from drainfsm.store.streams import READ_BYTES, UPLOAD_BYTES
from drainfsm_kit.s3 import BUCKET, Fault, FaultProxy, environment

MIB = 1 << 20
PART_BYTES = PART_SIZES[1]


@pytest.fixture
def proxy(s3_port: int) -> Iterator[FaultProxy]:
    proxy = FaultProxy(s3_port)
    with environment(proxy.port):
        yield proxy
    proxy.close()


@pytest.fixture
def store(proxy: FaultProxy, tmp_path: Path) -> ObjectStore:
    return open_store(f"s3://{BUCKET}/{tmp_path.name}")


def objects_of(store: ObjectStore) -> list[str]:
    return sorted(store.list(""))


def test_an_overloaded_store_is_waited_for(store: ObjectStore, proxy: FaultProxy) -> None:
    busy = Fault("PUT", "slot", count=2, status=503, headers={"Retry-After": "1"})
    proxy.faults.append(busy)
    store.put_if_absent("slot", b"x")
    assert busy.seen == 2
    assert store.get("slot") == b"x"


def test_a_store_that_stays_away_is_reported_in_bounded_time(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    proxy.faults.append(Fault("PUT", "slot", count=1_000, status=503))
    with pytest.raises(StoreUnreachableError, match="cannot create slot in s3://"):
        store.put_if_absent("slot", b"x")


def test_access_denied_says_what_to_check(store: ObjectStore, proxy: FaultProxy) -> None:
    """A store that may not be listed answers 403 for an object that is not there."""
    proxy.faults.append(Fault("GET", "slot", count=9, status=403))
    with pytest.raises(StoreUnreachableError, match=r"access denied\. Check the credentials, and"):
        store.get("slot")


def test_a_put_whose_answer_is_lost_is_settled_by_the_commit_log(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    """The client repeats the put and is told that the object exists: it is its own."""
    log = CommitLog(store, job_id="job", pause=lambda _: None)
    lost = Fault("PUT", r"00000001\.json", forward=True)
    proxy.faults.append(lost)
    claimed = log.claim(attempt_id="a", now_unix_ms=1)
    assert (lost.seen, claimed.slot, claimed.epoch) == (1, 1, 1)
    answered = Fault("PUT", r"00000002\.json", forward=True, status=500)
    proxy.faults.append(answered)
    other = CommitLog(store, job_id="job", pause=lambda _: None)
    assert other.claim(attempt_id="b", now_unix_ms=1).slot == 2
    assert answered.seen == 1
    found = [name.partition("-")[0] for name in objects_of(store)]
    assert found == [
        "commits/00000001.json",
        "commits/00000002.json",
        "marks/00000001",
        "marks/00000002",
        "store.json",
    ]


def test_a_slot_that_a_rival_took_while_the_answer_was_lost_is_theirs(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    rival = CommitLog(store, job_id="job")

    def pause(_: float) -> None:
        rival.claim(attempt_id="r", now_unix_ms=1)

    log = CommitLog(store, job_id="job", pause=pause)
    proxy.faults.append(Fault("PUT", r"00000001\.json", count=12, status=503))
    claimed = log.claim(attempt_id="a", now_unix_ms=1)
    assert (claimed.slot, claimed.epoch) == (2, 2)


def test_slow_lists_are_waited_for(store: ObjectStore, proxy: FaultProxy) -> None:
    log = CommitLog(store, job_id="job")
    log.claim(attempt_id="a", now_unix_ms=1)
    proxy.faults.append(Fault("GET", "list-type", delay_s=1.0))
    assert CommitLog(store, job_id="job").head().slot == 1


def test_a_running_attempt_lists_only_what_is_new(store: ObjectStore, proxy: FaultProxy) -> None:
    log = CommitLog(store, job_id="job")
    CommitLog(store, job_id="job").claim(attempt_id="a", now_unix_ms=1)
    log.claim(attempt_id="b", now_unix_ms=1)
    log.head()
    proxy.requests.clear()
    log.check_not_fenced(2)
    asked = [path for method, path in proxy.requests if method == "GET"]
    marks, listing = [path for path in asked if "list-type" in path]
    assert "marks" in marks
    assert "start-after=" in listing
    assert "00000001.json" in listing, "the newest that is known is listed again"
    assert len(asked) == 4, "besides the listings: store.json and that slot"


def test_a_large_stream_goes_up_in_parts_and_comes_back_whole(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    piece = bytes(range(256)) * (MIB // 256)
    size = 3 * PART_BYTES + 5 * MIB + 7
    with store.writer("generations/g1/x") as stream:
        for _ in range(size // MIB):
            stream.write(piece)
        stream.write(b"0123456")
    parts = [path for method, path in proxy.requests if method == "PUT" and "partNumber" in path]
    assert len(parts) == 4
    assert store.list("generations/g1/") == {"x": size}
    with store.reader("generations/g1/x") as stream:
        stream.seek(-7, 2)
        assert stream.read() == b"0123456"
        stream.seek(PART_BYTES - 3)
        assert stream.read(6) == bytes([253, 254, 255, 0, 1, 2])
        stream.seek(5)
        whole = stream.read(20 * MIB)
        assert whole == (piece * 21)[5 : 5 + 20 * MIB]


FAILING_PART = {
    "answered with an error": Fault("PUT", "partNumber=2", status=500),
    "throttled": Fault("PUT", "partNumber=2", status=503, headers={"Retry-After": "1"}),
    "cut off before it arrived": Fault("PUT", "partNumber=2"),
    "cut off after it arrived": Fault("PUT", "partNumber=2", forward=True),
    "not answered": Fault("PUT", "partNumber=2", delay_s=90),
}


@pytest.mark.parametrize("fails", FAILING_PART)
def test_a_part_that_fails_is_sent_again_and_no_other(
    store: ObjectStore, proxy: FaultProxy, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAILING_PART[fails]
    if fails == "not answered":
        monkeypatch.setattr(pace, "ANSWER_S_MIN", 4)
        monkeypatch.setattr(pace, "ANSWER_S_MAX", 8)
    data = bytes(range(256)) * (4 * PART_BYTES // 256)
    with store.writer("generations/g1/warm") as stream:
        stream.write(data[: 2 * PART_BYTES])
    proxy.requests.clear()
    proxy.faults.append(fault)
    with store.writer("generations/g1/x") as stream:
        stream.write(data)
    assert fault.seen == 1
    parts = [
        path.partition("partNumber=")[2].partition("&")[0]
        for method, path in proxy.requests
        if method == "PUT" and "partNumber" in path
    ]
    assert sorted(parts) == ["1", "2", "2", "3", "4"]
    assert store.get("generations/g1/x") == data


def test_a_range_that_fails_is_asked_for_again_and_no_other(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    data = bytes(range(256)) * (READ_BYTES // 256)
    with store.writer("generations/g1/x") as stream:
        stream.write(data)
    proxy.requests.clear()
    for fault in (Fault("GET", "g1/x", status=500), Fault("GET", "g1/x", forward=True)):
        proxy.faults.append(fault)
    place = bytearray(len(data))
    with store.ranges("generations/g1/x") as ranges:
        ranges.read_into(0, memoryview(place))
    assert place == data
    assert all(fault.seen == 1 for fault in proxy.faults)
    assert len([path for method, path in proxy.requests if method == "GET"]) == 4 + 2


def test_an_answer_that_is_too_short_is_asked_for_again(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    """Twice; an object that stays too short is damaged."""
    store.put("x", b"0123456789")
    with store.ranges("x", size_bytes=10) as ranges:
        proxy.faults.append(Fault("GET", "/x$", short=True, count=2))
        place = bytearray(10)
        ranges.read_into(0, memoryview(place))
        assert place == b"0123456789"
        proxy.faults[0].count = 99
        with pytest.raises(EOFError, match="ends at 5"):
            ranges.read_into(0, memoryview(place))


def test_what_is_in_flight_follows_from_the_measured_pace() -> None:
    measured = StorePace(part_bytes=PART_SIZES, flight_bytes=UPLOAD_BYTES)
    unknown = measured.flight()
    assert unknown == (8 * MIB, 5, pace.ANSWER_S_MAX)
    measured.note(1_000 * MIB, 1.0)
    assert measured.flight() == (8 * MIB, 5, pace.ANSWER_S_MIN), "one that hangs is seen soon"
    measured.note(10 * MIB, 2.5)
    slow = measured.flight()
    assert slow == (8 * MIB, 2, 32)
    measured.note(MIB, 1.0)
    assert measured.flight() == (5 * MIB, 2, 80), "S3 takes no smaller parts"
    measured.note(MIB, 100.0)
    assert measured.flight().answer_s == pace.ANSWER_S_MAX
    assert measured.flight(size_bytes=300_000 * MIB).part_bytes * 10_000 > 300_000 * MIB


def unfinished_uploads(port: int, name: str) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{BUCKET}?uploads") as answer:
        return name.encode() in answer.read()


@pytest.mark.parametrize("fails", ["writer", "store"])
def test_a_large_stream_that_fails_leaves_neither_object_nor_parts(
    store: ObjectStore, proxy: FaultProxy, s3_port: int, fails: str
) -> None:
    if fails == "store":
        proxy.faults.append(Fault("PUT", "partNumber=2", count=1_000, status=400))

    def write() -> None:
        with store.writer("generations/g1/x") as stream:
            for _ in range(6 * PART_BYTES // MIB):
                stream.write(bytes(MIB))
            if fails == "writer":
                raise StoreUnreachableError("the rank was told to stop")

    with pytest.raises(StoreUnreachableError, match=r"told to stop|cannot write generations/g1/x"):
        write()
    assert objects_of(store) == []
    assert not unfinished_uploads(s3_port, store.url.rpartition("/")[2])


MEMORY_SCRIPT = """
from pathlib import Path
from drainfsm.store import open_store

def peak_kib(anew=False):
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1])

store = open_store({url!r})
with store.writer("small") as stream:
    stream.write(b"x")
piece = bytes(4 << 20)
before = peak_kib()
with store.writer("large") as stream:
    for _ in range({mib} // 4):
        stream.write(piece)
written = peak_kib()
place = memoryview(bytearray({mib} << 20))
place[:] = bytes(len(place))
before_read = peak_kib(anew=True)
with store.ranges("large") as ranges:
    for at in range(0, len(place), ranges.piece_bytes):
        ranges.read_into(at, place[at : at + ranges.piece_bytes])
print((written - before) // 1024, (peak_kib() - before_read) // 1024)
"""


def test_memory_does_not_grow_with_the_object(store: ObjectStore) -> None:
    """Of 400 MiB, what is under way is in memory: parts going up, ranges coming down."""
    script = MEMORY_SCRIPT.format(url=store.url, mib=400)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    writing, reading = map(int, ran.stdout.split())
    assert writing < 100
    assert reading < 50


def test_a_name_that_is_taken_is_told_apart_from_a_store_that_fails(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    store.put_if_absent("slot", b"x")
    with pytest.raises(SlotTakenError):
        store.put_if_absent("slot", b"y")
    proxy.faults.append(Fault("PUT", "slot", count=9, status=400))
    with pytest.raises(StoreUnreachableError):
        store.put_if_absent("slot", b"y")
