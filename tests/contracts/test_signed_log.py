"""A job whose agent has credentials signs its log; a stream that its administrator wrote anew,
with an unbroken chain, is told from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core.chain import line_digest
from drainfsm.core.codec import encode
from drainfsm.core.events import AttemptFinished, Exited
from drainfsm.core.records import Record
from drainfsm.log import NatsServer, connect
from drainfsm.log.authority import CONFIG
from drainfsm.log.jetstream import STREAM
from drainfsm.log.signing import Signer
from drainfsm_kit.logs import chained
from drainfsm_kit.nats_servers import nats_server
from drainfsm_kit.running import RunningJob, running_job


@pytest.fixture(scope="module", params=["creds", "nk"])
def signed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    directory = tmp_path_factory.mktemp("signed")
    return Signed(directory, request.param)


class Signed:
    """A drained and a finished attempt of a job, and what a server can be made to hold of it."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory = directory
        self.keys = directory / "keys"
        self.kind = kind
        how = ["--nkeys"] if kind == "nk" else []
        with running_job(directory) as job:
            self.job = job.job
            assert main(["auth", "init", "-o", str(self.keys), "--job", job.job, *how]) == 0
            with nats_server(directory / "server", include=self.keys / CONFIG) as address:
                asyncio.run(self.init(address))
                job.nats = f"nats://{address}"
                self._run(job)
                self.records = asyncio.run(self.read(address))
                self.store = job.store_url
                self.local = [record for epoch in (1, 2) for record in job.records(epoch)]

    @property
    def public(self) -> Path:
        return self.keys / f"agent-{self.job}.pub"

    def server(self, address: str, name: str) -> NatsServer:
        file = str(self.keys / f"{name}.{self.kind}")
        option = {"nkey" if self.kind == "nk" else "creds": file}
        return NatsServer(url=f"nats://{address}", **option)

    def _run(self, job: RunningJob) -> None:
        agent = self.server("", f"agent-{job.job}")
        given = {"nats_nkey": agent.nkey, "nats_creds": agent.creds}
        settings = {name: value for name, value in given.items() if value}
        job.start(job.toy(), settings=settings)
        job.wait(lambda: job.steps(0) or None, what="step")
        job.notify(in_s=20)
        job.wait_for(Exited)
        job.wait_until_gone()
        job.start(job.toy("--steps", "5"), settings=settings)
        job.wait_for(AttemptFinished, epoch=2)
        job.wait_until_gone()

    async def init(self, address: str) -> None:
        connection = await connect(self.server(address, "admin"), timeout_s=30)
        await connection.ensure_stream()
        await connection.close()

    async def read(self, address: str) -> list[Record]:
        connection = await connect(self.server(address, "admin"), timeout_s=30)
        try:
            return await connection.read_job(self.job)
        finally:
            await connection.close()

    async def write_anew(self, address: str, records: Sequence[Record]) -> None:
        """As an administrator can."""
        connection = await connect(self.server(address, "admin"), timeout_s=30)
        client = connection.link.client
        await client.request(f"$JS.API.STREAM.DELETE.{STREAM}", b"", timeout=30)
        await connection.ensure_stream()
        last: dict[int, int] = {}
        for record in records:
            after = last.get(record.epoch, 0)
            last[record.epoch] = await connection.append(record, after_sequence=after)
        await connection.close()


@pytest.fixture
def verify(
    signed: Signed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    def run(records: Sequence[Record], *options: str) -> tuple[int, str]:
        with nats_server(tmp_path / "server", include=signed.keys / CONFIG) as address:
            asyncio.run(signed.init(address))
            asyncio.run(signed.write_anew(address, records))
            reader = signed.server(address, "reader")
            shown = ["--nats-nkey", reader.nkey] if reader.nkey else ["--nats-creds", reader.creds]
            argv = ["verify", "--job", signed.job, "--nats", reader.url, *shown, *options]
            capsys.readouterr()
            return main(argv), capsys.readouterr().out

    return run


def anew(records: Sequence[Record], by: Signer | None = None) -> list[Record]:
    """Every record a second later, each attempt in an unbroken chain."""
    made: list[Record] = []
    for epoch in (1, 2):
        own = [replace(one, at_unix_ms=one.at_unix_ms + 1_000) for one in records]
        own = chained([replace(one, signed=UNSET) for one in own if one.epoch == epoch])
        made += own
    if by is None:
        return made
    found: list[Record] = []
    for record in made:
        before = line_digest(encode(found[-1])) if found and record.follows else ""
        found.append(by.signed(replace(record, before=before)))
    return found


Verify = Callable[..., tuple[int, str]]


def test_the_log_of_an_agent_with_a_key_is_signed_to_its_end(
    signed: Signed, verify: Verify
) -> None:
    assert signed.records == signed.local
    ends = [one for one in signed.records if one.signed is not UNSET]
    assert {(one.epoch, one.follows) for one in ends} >= {
        (epoch, max(one.follows for one in signed.records if one.epoch == epoch))
        for epoch in (1, 2)
    }
    code, text = verify(signed.records, "--signer", str(signed.public), "--store", signed.store)
    assert (code, text.count("as written"), text.count("no end on record")) == (0, 2, 0), text
    assert text.count(f"signed by {signed.public.read_text().strip()}") == 2


def test_a_stream_that_its_administrator_wrote_anew_is_found(
    signed: Signed, verify: Verify
) -> None:
    """Without key and store it looks intact: all that is in the stream was theirs to write."""
    key = signed.server("", "admin").key_pair()
    assert key is not None
    forged = anew(signed.records)
    forged = [one for one in forged if one.epoch == 1]
    theirs = [one for one in anew(signed.records, Signer(key)) if one.epoch == 1]
    for records, kind in ((forged, "unsigned"), (theirs, "wrong key")):
        assert verify(records)[0] == 0
        code, text = verify(records, "--signer", str(signed.public))
        assert code == 1
        assert f"{kind} record 0" in text


def test_an_attempt_that_was_cut_off_is_told_by_the_one_behind_it(
    signed: Signed, verify: Verify
) -> None:
    """What signatures cannot tell: each of the records that are left is good."""
    cut = [one for one in signed.records if one.epoch == 2 or one.follows < 3]
    code, text = verify(cut, "--signer", str(signed.public))
    assert code == 1
    assert "the start of attempt 2 knows" in text
    assert "attempt 1: 3 records" in text
    alone = [one for one in cut if one.epoch == 1]
    code, text = verify(alone, "--signer", str(signed.public))
    assert code == 0
    assert "no end on record (running, lost, fenced or cut off)" in text


def test_no_secret_is_in_what_is_written(signed: Signed) -> None:
    secret = signed.server("", f"agent-{signed.job}").key_pair()
    assert secret is not None
    seed = bytes(secret.seed)
    written = [
        path
        for path in signed.directory.rglob("*")
        if path.is_file() and signed.keys not in path.parents
    ]
    assert len(written) > 5
    assert [path for path in written if seed in path.read_bytes()] == []
