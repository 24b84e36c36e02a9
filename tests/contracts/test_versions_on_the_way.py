"""A log that another version wrote, older or newer: this one ships, exports, archives, keeps and
imports it byte for byte, or its chain and its signatures would break on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest

from drainfsm.cli.main import main
from drainfsm.core.chain import line_digest
from drainfsm.core.codec import encode
from drainfsm.core.records import subjects_of
from drainfsm.log import connect
from drainfsm.log.frames import frame, header_bytes
from drainfsm.log.journal import Journal, journal_path
from drainfsm.log.server import public_nkey, url_base64
from drainfsm.log.shipper import Shipper
from drainfsm.log.signing import MARK
from drainfsm.runtime.coordinator.kept_records import bring_back
from drainfsm.store import open_store
from drainfsm.store.kept_log import KEPT
from drainfsm.testing.scenario import Scenario
from drainfsm_kit.nats_servers import nats_server

JOB = "job"
KEY = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))


def _plain(lines: list[dict[str, Any]]) -> None:
    """As this version writes it."""


def _newer(lines: list[dict[str, Any]]) -> None:
    for number, wire in enumerate(lines):
        wire["written_by"] = {"version": "9.0", "host": [number, None, 0.5]}
        wire["events"][0]["added_later"] = "\u00fc\u2028 \\ /"
    lines[3]["events"][0]["outcome"] = "frozen"
    lines[2]["events"] += [{"kind": "coffee_brewed", "cups": 1.50}]


def _older(lines: list[dict[str, Any]]) -> None:
    """Before fields that have a default came."""
    del lines[0]["events"][0]["samples"]


@pytest.fixture(params=[_plain, _newer, _older])
def written(request: pytest.FixtureRequest) -> list[bytes]:
    """Lines of a log that is chained and signed, as its writer left it."""
    wires = [json.loads(encode(record)) for record in Scenario().saving().history]
    request.param(wires)
    lines: list[bytes] = []
    for wire in wires:
        wire["before"] = line_digest(lines[-1]) if lines else ""
        line = json.dumps(wire, separators=(",", ":"), ensure_ascii=False).encode()
        signed = f"{public_nkey(KEY)}.{url_base64(KEY.sign(MARK + line))}"
        lines.append(line[:-1] + f',"signed":"{signed}"}}'.encode())
    return lines


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with nats_server(tmp_path / "server") as address:
        yield f"nats://{address}"


def leave_journal(state_dir: Path, lines: Sequence[bytes]) -> Path:
    path = journal_path(state_dir, job_id=JOB, epoch=1)
    path.parent.mkdir(parents=True)
    frames = [frame(lines[0]), frame(b"\n".join(lines[1:3])), *map(frame, lines[3:])]
    path.write_bytes(header_bytes(job_id=JOB, epoch=1) + b"".join(frames))
    return path


def stored(url: str) -> list[bytes]:
    async def read() -> list[bytes]:
        connection = await connect(url, timeout_s=30)
        try:
            return [message.data async for message in connection.messages(subjects_of(JOB))]
        finally:
            await connection.close()

    return asyncio.run(read())


def ship(url: str, state_dir: Path) -> None:
    async def run() -> None:
        shipper = Shipper(server=url, state_dir=state_dir, job_id=JOB, on_error=print)
        await shipper.start()
        assert await shipper.flush(timeout_ms=60_000)
        await shipper.close(timeout_ms=5_000)

    asyncio.run(run())


def verify(*where: str) -> int:
    return main(["verify", *where, "--signer", public_nkey(KEY)])


def test_from_the_journal_through_two_streams(
    written: list[bytes], url: str, tmp_path: Path
) -> None:
    journal = leave_journal(tmp_path / "state", written)
    ship(url, tmp_path / "state")
    assert stored(url) == written
    exported = tmp_path / "exported.jsonl"
    assert main(["export", "--job", JOB, "--nats", url, "-o", str(exported)]) == 0
    archived = tmp_path / "archive"
    assert (
        main(["export", "--archive", str(archived), "--nats", url, "--older-than", "2100-01-01"])
        == 0
    )
    for file in (exported, archived / JOB / "000001.jsonl"):
        assert file.read_bytes().splitlines() == written
        assert verify("--file", str(file)) == 0
    for number, file in enumerate((exported, journal)):
        with nats_server(tmp_path / f"other{number}") as address:
            other = f"nats://{address}"
            assert main(["import", "--job", JOB, "--nats", other, "--file", str(file)]) == 0
            assert stored(other) == written
            assert verify("--job", JOB, "--nats", other) == 0


def test_from_an_export_of_the_journal_beside_the_checkpoints(
    written: list[bytes], url: str, tmp_path: Path
) -> None:
    leave_journal(tmp_path / "state", written)
    exported = tmp_path / "exported.jsonl"
    main(["export", "--job", JOB, "--state-dir", str(tmp_path / "state"), "-o", str(exported)])
    store = open_store(str(tmp_path / "ckpt"))
    store.create(parents=False)
    store.put_if_absent(f"{KEPT}000001/all.jsonl", exported.read_bytes())
    store_url = str(tmp_path / "ckpt")
    assert main(["import", "--job", JOB, "--nats", url, "--store", store_url]) == 0
    assert stored(url) == written
    back = tmp_path / "back"
    bring_back(
        store,
        lambda epoch: Journal.open(
            journal_path(back, job_id=JOB, epoch=epoch), job_id=JOB, epoch=epoch
        ),
        [1],
        warn=pytest.fail,
    )
    assert verify("--job", JOB, "--state-dir", str(back)) == 0


def test_a_journal_that_is_gone_on_with_names_what_stands_there(
    written: list[bytes], tmp_path: Path
) -> None:
    """Its head goes into commits and the requeue record; the next record names the last."""
    path = leave_journal(tmp_path / "state", written)
    with closing(Journal.open(path, job_id=JOB, epoch=1)) as journal:
        head = journal.head
    assert head is not None
    assert (head.count, head.digest) == (len(written), line_digest(written[-1]))
