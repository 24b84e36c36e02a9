"""Every decoder of bytes that somebody else wrote, as ``odd_bytes`` takes them.

python -m drainfsm_kit.decoders --seconds 60       # each of them for so long
python -m drainfsm_kit.decoders --only slot        # one
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, seed, settings

from drainfsm.cli.settings import load_settings
from drainfsm.core.codec import decode, decode_lines, decode_object, encode
from drainfsm.core.events import Event
from drainfsm.core.explain import explain
from drainfsm.core.manifest import Commit, Manifest
from drainfsm.core.records import Record
from drainfsm.core.requeue import RequeueRecord
from drainfsm.core.rules import broken_rules
from drainfsm.errors import (
    BrokerError,
    CommitLogError,
    ConfigError,
    JournalCorruptError,
    ManifestMismatchError,
    ProtocolError,
    RecordUnreadableError,
    StoreError,
)
from drainfsm.log.frames import MAGIC, frame, header_bytes
from drainfsm.log.journal import read_journal
from drainfsm.log.wire import Incoming, Wire
from drainfsm.policy.decisions import DECISIONS, read_decisions
from drainfsm.policy.events import Decision
from drainfsm.policy.policy_text import explain_decision, rules_text
from drainfsm.policy.rules import read_rules
from drainfsm.runtime.agent.left_for import LeftFor
from drainfsm.runtime.agent.stored_token import NAME, stored_token
from drainfsm.runtime.paths import RunInfo, read_run_info, run_info_path
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import Codec, FrameBuffer
from drainfsm.store.commits import CommitLog
from drainfsm.store.drills import DRILLS, read_drills
from drainfsm.store.rehearsals import REHEARSALS, DrainRehearsed, read_rehearsals
from drainfsm.store.requeues import read_requeue
from drainfsm.testing.stores import MemoryStore
from drainfsm.views.history import export_lines, read_file
from drainfsm.views.replay import Final, Line, encode_line, replay_job
from drainfsm.views.report import report_jobs
from drainfsm.views.report_text import report_text
from drainfsm.views.table import table
from drainfsm_adapters import aws_payloads as aws
from drainfsm_adapters import azure, gcp
from drainfsm_adapters import slurm_records as slurm
from drainfsm_adapters.metadata import Endpoint, MetadataClient, NoAnswerError, Reply
from drainfsm_adapters.times import from_http_date, from_rfc3339, from_utc8
from drainfsm_kit.odd_bytes import Decoder, example_of, examples_of
from drainfsm_kit.tcp import serving

json = msgspec.json.encode
pack = msgspec.msgpack.encode


def _seeds(*values: object) -> tuple[bytes, ...]:
    return tuple(json(value) for value in values)


def _records() -> list[Record]:
    """One of each kind of event."""
    plain = [
        {**example_of(Record), "id": f"a{number}", "follows": number, "events": [event]}
        for number, event in enumerate(examples_of(Event))
    ]
    return [decode(json(record)) for record in plain]


# --- records and histories ----------------------------------------------------------------------


def _record(data: bytes) -> None:
    record = decode(data)
    again = decode(encode(record))
    assert encode(again) == encode(record)


def _lines(data: bytes) -> None:
    list(decode_lines(data))


def _file(data: bytes) -> None:
    """Whatever a file holds, every view of it says something: ``--file`` is read by people."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exported"
        path.write_bytes(data)
        history = read_file(path)
    for replay in replay_job(history.logs):
        "\n".join(table(replay)).encode()
        lines: list[Line | Final] = [*replay.lines, replay.final]
        for line in lines:
            encode_line(line).decode()
        "\n".join(explain(replay.counted)).encode()
        broken_rules(replay.counted)
    found = report_jobs(history.logs)
    "\n".join(report_text(found)).encode()
    export_lines(history)


def _journal(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "000001.journal"
        path.write_bytes(data)
        list(read_journal(path))


def _framed(data: bytes) -> None:
    """Odd contents of whole frames: a checksum says nothing of them."""
    if data:
        _journal(header_bytes(job_id="a", epoch=1) + frame(data))


def _headed(data: bytes) -> None:
    if data:
        _journal(MAGIC + frame(data))


# --- the store ----------------------------------------------------------------------------------


def _store(name: str, data: bytes) -> MemoryStore:
    store = MemoryStore()
    store.put(name, data)
    return store


def _committed() -> dict[str, bytes]:
    """A store with one claim and one commit."""
    store = MemoryStore()
    log = CommitLog(store, job_id="a")
    log.claim(attempt_id="b", now_unix_ms=1)
    commit = {**example_of(Commit), "attempt_id": "b", "epoch": 1}
    del commit["kind"]
    log.publish(Commit(**commit))
    return {name: store.get(name) or b"" for name in store.list("")}


_COMMITTED = _committed()
_SECOND, _IDENTITY = "commits/00000002.json", "store.json"


def _slot(data: bytes) -> None:
    _read_store(_SECOND, data)


def _identity(data: bytes) -> None:
    _read_store(_IDENTITY, data)


def _read_store(changed: str, data: bytes) -> None:
    store = MemoryStore()
    for name, stored in {**_COMMITTED, changed: data}.items():
        store.put(name, stored)
    log = CommitLog(store, job_id="a", pause=lambda _: None)
    log.head()
    list(log.commits())


def _requeue(data: bytes) -> None:
    read_requeue(_store("requeue/000001.json", data), epoch=1)


def _drill(data: bytes) -> None:
    read_drills(_store(f"{DRILLS}g-1-a.json", data), job_id="a")


def _rehearsal(data: bytes) -> None:
    read_rehearsals(_store(f"{REHEARSALS}maintenance-1-a.json", data), job_id="a")


def _decision(data: bytes) -> None:
    for decision in read_decisions(_store(f"{DECISIONS}1-a.json", data)):
        list(explain_decision(decision))


def _rules(data: bytes) -> None:
    list(rules_text(read_rules(data.decode("utf-8", "replace"), where="rules")))


def _manifest(data: bytes) -> None:
    decode_object(data, Manifest, what="manifest")


def _token(data: bytes) -> None:
    stored_token(_store(NAME, data), node_rank=0)


# --- what processes say to each other -----------------------------------------------------------


def _frames(union: Any) -> Callable[[bytes], None]:
    codec: Codec[Any] = Codec(union)

    def decode_all(data: bytes) -> None:
        list(FrameBuffer(codec).feed(data))

    return decode_all


def _messages(name: str, union: Any) -> list[Decoder]:
    packed = tuple(pack(example) for example in examples_of(union))
    framed = tuple(len(one).to_bytes(4, "big") + one for one in packed)
    refuses = (ProtocolError,)
    codec: Codec[Any] = Codec(union)
    return [
        Decoder(name=name, decode=codec.decode, refuses=refuses, seeds=packed, packed=True),
        Decoder(name=f"{name}-frames", decode=_frames(union), refuses=refuses, seeds=framed),
    ]


def _left_for(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory = LeftFor(Path(folder), job="a", node_rank=0)
        memory.add({"aws/i-1": None})
        (path,) = (Path(folder) / "a" / "left-for").iterdir()
        path.write_bytes(data)
        memory.read()


def _run_info(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = run_info_path(Path(folder), "a")
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        read_run_info(Path(folder), "a")


def _toml(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drainfsm.toml"
        path.write_bytes(data)
        found = load_settings({"config": str(path)}, environment={}, directory=Path(folder))
        found.run_config(["true"])


def _stored_messages(data: bytes) -> None:
    async def split() -> None:
        incoming = Incoming()
        incoming.data_received(data)
        incoming.connection_lost(None)
        wire = Wire(_Deaf(), incoming, inbox_prefix="_INBOX")
        async for _ in wire.read("S", {}, timeout_s=60):
            pass

    asyncio.run(split())


class _Deaf(asyncio.WriteTransport):
    """To nobody."""

    def write(self, data: object) -> None: ...

    def abort(self) -> None: ...


def _hmsg(head: bytes, body: bytes) -> bytes:
    sizes = f"{len(head)} {len(head) + len(body)}".encode()
    return b"HMSG _INBOX.a.1 1 " + sizes + b"\r\n" + head + body + b"\r\n"


STORED = _hmsg(b"NATS/1.0\r\nNats-Stream: S\r\nNats-Sequence: 1\r\n\r\n", b"{}")
END = _hmsg(b"NATS/1.0 204\r\nNats-Num-Pending: 0\r\n\r\n", b"")
TOML = b'job = "a"\nstore = "file:///s"\n[allowances]\nquiesce_ms = 1\n[adapters.aws]\npoll_s = 1\n'


RULES = b'[preemption]\ntiers = [{name = "a", preempts = []}]\n[restart]\njitter = 0.1\n'


def decoders() -> list[Decoder]:
    """All of them."""
    records = tuple(encode(record) for record in _records())
    log = (RecordUnreadableError,)
    journal = (JournalCorruptError, RecordUnreadableError)
    return [
        Decoder(name="record", decode=_record, refuses=log, seeds=records),
        Decoder(name="lines", decode=_lines, refuses=log, seeds=(b"\n".join(records), *records)),
        Decoder(name="file", decode=_file, refuses=(), seeds=(b"\n".join(records), *records)),
        Decoder(
            name="journal",
            decode=_journal,
            refuses=journal,
            seeds=(header_bytes(job_id="a", epoch=1) + frame(records[0]),),
        ),
        Decoder(name="frame", decode=_framed, refuses=journal, seeds=records),
        Decoder(
            name="header",
            decode=_headed,
            refuses=journal,
            seeds=_seeds({"format_version": 1, "job_id": "a", "epoch": 1}),
        ),
        Decoder(
            name="slot",
            decode=_slot,
            refuses=(CommitLogError,),
            seeds=(_COMMITTED[_SECOND],),
        ),
        Decoder(
            name="store",
            decode=_identity,
            refuses=(CommitLogError,),
            seeds=(_COMMITTED[_IDENTITY],),
        ),
        Decoder(
            name="requeue",
            decode=_requeue,
            refuses=(CommitLogError,),
            seeds=_seeds(example_of(RequeueRecord)),
        ),
        Decoder(name="drill", decode=_drill, refuses=log, seeds=records),
        Decoder(
            name="rehearsal",
            decode=_rehearsal,
            refuses=log,
            seeds=_seeds(example_of(DrainRehearsed)),
        ),
        Decoder(
            name="decision",
            decode=_decision,
            refuses=log,
            seeds=_seeds(*examples_of(Decision)),
        ),
        Decoder(name="rules", decode=_rules, refuses=(ConfigError,), seeds=(RULES,)),
        Decoder(
            name="manifest",
            decode=_manifest,
            refuses=(ManifestMismatchError,),
            seeds=_seeds(example_of(Manifest)),
        ),
        Decoder(name="token", decode=_token, refuses=(StoreError,), seeds=(b"a" * 64,)),
        *_messages("from-rank", m.FromRank | m.FromCaller),
        *_messages("to-rank", m.ToRank),
        *_messages("from-node", n.FromNode),
        *_messages("to-node", n.ToNode),
        *_messages("joining", n.Joining),
        Decoder(name="left-for", decode=_left_for, refuses=(), seeds=(b'{"aws/i-1":null,"b":17}',)),
        Decoder(name="run-info", decode=_run_info, refuses=(), seeds=_seeds(example_of(RunInfo))),
        Decoder(name="toml", decode=_toml, refuses=(ConfigError,), seeds=(TOML,)),
        Decoder(
            name="stream",
            decode=_stored_messages,
            refuses=(BrokerError,),
            seeds=(STORED + END, STORED * 2 + END),
        ),
        *_payloads(),
    ]


# --- the adapters -------------------------------------------------------------------------------


def _reply(data: bytes) -> Reply:
    return Reply(status=200, headers={}, body=data, sent_unix_ms=0, received_unix_ms=1)


def _azure(data: bytes) -> None:
    for event in azure.parse(_reply(data).json(azure.Document))[0]:
        azure.observed(event)


def _answer(data: bytes) -> None:
    """All that a metadata server says, its head and all."""

    async def exchange() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(data)

        async with serving(serve) as port:
            endpoint = Endpoint(host="127.0.0.1", port=port, host_header="a")
            client = MetadataClient(endpoint, timeout_s=60, now_unix_ms=lambda: 1)
            reply = await client.request("GET", "/", headers={})
            assert isinstance(reply.text, str)

    asyncio.run(exchange())


def _instants(data: bytes) -> None:
    text = data.decode()
    for parse in (from_rfc3339, from_http_date, from_utc8):
        try:
            parse(text)
        except ValueError:
            continue


def _scontrol(data: bytes) -> None:
    output = data.decode(errors="replace")
    slurm.nodes_of(output)
    slurm.reservations_of(output)
    slurm.limits_of(config=output, partition=output)
    slurm.job_of(output, job_id="7")


def _payloads() -> list[Decoder]:
    instant = "2026-11-29T12:02:00Z"
    date = "Sun, 29 Nov 2026 12:15:00 GMT"
    event = {"EventId": "e", "NotBefore": date, "NotAfter": "", "State": "active", "Code": "stop"}
    azure_event = {
        "EventId": "e",
        "EventType": "Reboot",
        "EventStatus": "Scheduled",
        "Resources": ["gpu-0"],
        "NotBefore": date,
        "DurationInSeconds": 9,
        "Description": None,
    }
    document = {"DocumentIncarnation": 1, "Events": [azure_event, azure_event]}
    maintenance = {"window_start_time": instant, "type": "SCHEDULED", "error": ""}
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nDate: " + date.encode() + b"\r\n\r\n{}"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    job = {"job_id": 7, "job_state": ["RUNNING"], "end_time": {"set": True, "number": 1}}
    text = b"JobId=7 JobName=a UserId=b JobState=RUNNING Restarts=0 EndTime=1 NodeList=n1\n"
    node = b"NodeName=n1 State=IDLE+DRAIN Reason=gone [root@1]\nKillWait = 30 sec\nGraceTime=5\n"
    cloud: list[tuple[str, Callable[[bytes], object], tuple[bytes, ...]]] = [
        ("aws-scheduled", lambda data: aws.scheduled_events(_reply(data)), _seeds([event, event])),
        (
            "aws-interruption",
            lambda data: aws.interruption(_reply(data)),
            _seeds({"action": "stop", "time": instant}),
        ),
        ("aws-termination", lambda data: aws.termination(_reply(data)), (instant.encode(),)),
        (
            "aws-rebalance",
            lambda data: aws.rebalance(_reply(data), lead_ms=120_000, advisory=False),
            _seeds({"noticeTime": instant}),
        ),
        ("azure", _azure, _seeds(document)),
        ("gcp", lambda data: gcp.upcoming_maintenance(_reply(data)), _seeds(maintenance)),
        ("answer", _answer, (head, chunked)),
    ]
    return [
        *(
            Decoder(name=name, decode=decode, refuses=(NoAnswerError,), seeds=seeds)
            for name, decode, seeds in cloud
        ),
        Decoder(
            name="instants",
            decode=_instants,
            refuses=(UnicodeDecodeError,),
            seeds=(instant.encode(), date.encode(), b"2026-11-29 20:02:00"),
        ),
        Decoder(
            name="scontrol",
            decode=_scontrol,
            refuses=(ValueError,),
            seeds=(json({"jobs": [job]}), text, node),
        ),
    ]


def with_corpus(corpus: Path | None) -> list[Decoder]:
    """All of them, with what is kept in ``CORPUS/NAME/`` among their seeds."""
    return [
        msgspec.structs.replace(decoder, seeds=(*decoder.seeds, *kept(corpus, decoder.name)))
        for decoder in decoders()
    ]


def kept(corpus: Path | None, name: str) -> list[bytes]:
    if corpus is None:
        return []
    return [path.read_bytes() for path in sorted((corpus / name).glob("*"))]


# --- by hand ------------------------------------------------------------------------------------


def search(decoder: Decoder, *, seconds: float) -> int:
    """Odd bytes for so long; how many. The first that is not refused as it may be is raised."""
    count = 0
    began = time.monotonic()

    @settings(max_examples=500, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(decoder.strategy())
    def batch(data: bytes) -> None:
        nonlocal count
        count += 1
        decoder.take(data)

    number = 0
    while time.monotonic() - began < seconds:
        number += 1
        seed(number)(batch)()
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each decoder")
    parser.add_argument("--only", default="", help="one decoder")
    parser.add_argument("--corpus", type=Path, help="a folder for each decoder, of more seeds")
    arguments = parser.parse_args()
    failed = 0
    for decoder in with_corpus(arguments.corpus):
        if arguments.only in ("", decoder.name):
            try:
                count = search(decoder, seconds=arguments.seconds)
                sys.stdout.write(f"{decoder.name:18} {count:>9,} inputs\n")
            except Exception as error:
                failed += 1
                told = "\n".join(getattr(error, "__notes__", ()))
                sys.stdout.write(f"{decoder.name:18} FAILED: {error!r}\n{told}\n")
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
