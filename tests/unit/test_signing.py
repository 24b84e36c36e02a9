"""What ``drainfsm verify`` says of signatures; the one who is to be found may write the whole log
anew, and has every right but the agent's key."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core.chain import line_digest
from drainfsm.core.codec import decode, encode
from drainfsm.core.records import Record
from drainfsm.errors import ConfigError
from drainfsm.log.server import NatsServer
from drainfsm.log.signing import MARK, Signer, SignersKnown, signer_of
from drainfsm.views.verify import RawLine, Verified, verify_attempts
from drainfsm_kit.logs import records_of

nkeys = pytest.importorskip("nkeys")

COUNT = 8


def new_seed() -> str:
    return bytes(nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)).decode()


def signer(directory: Path, name: str) -> Signer:
    path = directory / f"{name}.nk"
    path.write_text(new_seed())
    found = signer_of(NatsServer(url="", nkey=str(path)))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return signer(tmp_path_factory.mktemp("keys"), "agent")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return signer(tmp_path_factory.mktemp("keys"), "stranger")


def log_of(records: list[Record], by: Signer | None, *, last_only: frozenset[int]) -> list[bytes]:
    """Chained; ``last_only``: positions that share an append with the one behind them."""
    lines: list[bytes] = []
    for record in records:
        linked = replace(record, before=line_digest(lines[-1]) if lines else "", signed=UNSET)
        if by is not None and record.follows not in last_only:
            linked = by.signed(linked)
        lines.append(encode(linked))
    return lines


def known(*keys: Signer) -> SignersKnown:
    found = SignersKnown()
    for key in keys:
        found.add(key.public_key, where="here")
    return found


def verified(lines: list[bytes], *keys: Signer) -> Verified:
    raw = [RawLine(f"line {number}", data) for number, data in enumerate(lines, start=1)]
    (found,) = verify_attempts(raw, {}, signers=known(*keys) if keys else None)
    return found


def told(lines: list[bytes], *keys: Signer) -> list[tuple[str, int | None]]:
    return [(one.kind, one.position) for one in verified(lines, *keys).findings]


RECORDS = records_of("job", COUNT)
BATCHES = frozenset({2, 3})


@pytest.fixture(scope="module")
def log(agent: Signer) -> list[bytes]:
    return log_of(RECORDS, agent, last_only=BATCHES)


def test_a_signed_log_is_proven_by_the_key_and_keeps_its_bytes(
    log: list[bytes], agent: Signer, stranger: Signer
) -> None:
    assert told(log, agent) == told(log, stranger, agent) == []
    assert verified(log, agent).signed_by == (agent.public_key,)
    assert [encode(decode(line)) for line in log] == log


def test_a_log_that_the_streams_administrator_wrote_anew_is_found(
    log: list[bytes], agent: Signer, stranger: Signer
) -> None:
    """The chain holds in each: only the signature tells."""
    other = [replace(one, at_unix_ms=one.at_unix_ms + 1) for one in RECORDS]
    unsigned = log_of(other, None, last_only=frozenset())
    theirs = log_of(other, stranger, last_only=frozenset())
    copied = [
        encode(replace(decode(new), signed=decode(old).signed))
        for new, old in zip(unsigned, log, strict=True)
    ]
    assert told(unsigned) == told(theirs) == []
    assert told(unsigned, agent) == [("unsigned", 0)]
    assert told(theirs, agent) == [("wrong_key", p) for p in range(COUNT)]
    assert {kind for kind, _ in told(copied, agent)} == {"changed", "unsigned"}


@pytest.mark.parametrize("position", range(COUNT))
def test_what_is_written_anew_from_one_record_on_is_found_there(
    position: int, log: list[bytes], agent: Signer, stranger: Signer
) -> None:
    changed = [
        replace(one, at_unix_ms=one.at_unix_ms + (one.follows >= position)) for one in RECORDS
    ]
    for by, kind in ((None, "unsigned"), (stranger, "wrong_key")):
        lines = log[:position]
        for record in changed[position:]:
            linked = replace(record, before=line_digest(lines[-1]) if lines else "")
            lines.append(encode(linked if by is None else by.signed(linked)))
        found = told(lines, agent)
        at = min(p for k, p in found if p is not None and k == kind)
        shared = position - 1 in BATCHES  # those that were appended with it have lost their proof
        assert at == position or (shared and at in BATCHES), (found, kind)
        assert all(p is not None and (p >= position or shared) for _, p in found)


def test_who_shares_an_append_with_a_changed_record_has_lost_its_proof(
    log: list[bytes], agent: Signer
) -> None:
    last = max(BATCHES) + 1
    changed = encode(replace(decode(log[last]), at_unix_ms=0))
    lines = [*log[:last], changed, *log[last + 1 :]]
    assert told(lines, agent) == [("changed", last), ("unsigned", min(BATCHES))]


def test_a_good_end_does_not_stand_for_a_beginning_that_was_written_anew(
    log: list[bytes], agent: Signer
) -> None:
    other = [replace(one, at_unix_ms=one.at_unix_ms + 1) for one in RECORDS]
    lines = [*log_of(other, None, last_only=frozenset())[:5], *log[5:]]
    assert told(lines, agent) == [("changed", 4), ("unsigned", 0)]


def test_records_put_behind_the_end_are_found(log: list[bytes], agent: Signer) -> None:
    (more,) = records_of("job", 1, first=COUNT, writer="forged")
    assert told([*log, encode(replace(more, before=line_digest(log[-1])))], agent) == [
        ("unsigned", COUNT)
    ]


def test_a_signature_is_good_for_its_record_in_its_attempt_alone(
    log: list[bytes], agent: Signer
) -> None:
    last = decode(log[-1])
    for other in (
        replace(last, job_id="other"),
        replace(last, epoch=2),
        replace(last, before=line_digest(b"")),
        replace(last, events=()),
    ):
        assert known(agent).verdict(encode(other), other.signed) == "changed"
    assert known(agent).verdict(log[-1], last.signed) == "good"
    assert known(agent).verdict(log[-1] + b" ", last.signed) == "changed"
    assert known(agent).verdict(log[-1].replace(b'"v":1', b'"v": 1'), last.signed) == "changed"


def test_logs_that_nobody_signed_stay_as_they_were(agent: Signer) -> None:
    chained = log_of(RECORDS, None, last_only=frozenset())
    bare = [encode(one) for one in RECORDS]
    for lines in (chained, bare):
        assert told(lines) == []
        (finding,) = verified(lines, agent).findings
        assert (finding.kind, finding.position) == ("unsigned", 0)
        assert "7 more" in finding.detail


@given(nonce=st.text(max_size=40), prefix=st.sampled_from(["", MARK.decode("latin-1"), "\udcff"]))
def test_a_server_gets_no_record_signed_whatever_it_asks_for(
    nonce: str, prefix: str, agent: Signer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It chooses the text that the key signs at a connect."""
    path = tmp_path_factory.getbasetemp() / "asked.nk"
    if not path.exists():
        path.write_text(new_seed())
    server = NatsServer(url="nats://x", nkey=str(path))
    key = server.key_pair()
    assert key is not None
    (record,) = records_of("job", 1)
    wanted = prefix + encode(record).decode() + nonce
    shown = server.shown(wanted)
    forged = replace(record, signed=f"{shown['nkey']}.{shown['sig']}")
    keys = SignersKnown()
    keys.add(shown["nkey"], where="here")
    assert keys.verdict(encode(forged), forged.signed) == "changed"
    assert keys.verdict(encode(own := Signer(key).signed(record)), own.signed) == "good"


# --- the command --------------------------------------------------------------------------------


def verify(
    capsys: pytest.CaptureFixture[str], path: Path, *options: str
) -> tuple[int, str, list[dict[str, object]]]:
    code = main(["verify", "--file", str(path), *options])
    text = capsys.readouterr().out
    main(["verify", "--file", str(path), "--json", *options])
    return code, text, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_verify_takes_keys_by_option_file_and_variable(
    log: list[bytes],
    agent: Signer,
    stranger: Signer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, keys = tmp_path / "log.jsonl", tmp_path / "agent.pub"
    path.write_bytes(b"\n".join(log) + b"\n")
    keys.write_text(f"# of this year\n{agent.public_key}\n\n{stranger.public_key}  # before\n")
    code, text, (found,) = verify(capsys, path, "--signer", str(keys))
    assert (code, found["findings"]) == (0, [])
    assert f"signed by {agent.public_key}" in text
    assert "no end on record" in text
    code, text, _ = verify(capsys, path, "--signer", stranger.public_key)
    assert code == 1
    assert "wrong key record 7" in text
    monkeypatch.setenv("DRAINFSM_SIGNERS", f"{stranger.public_key},{keys}")
    assert verify(capsys, path)[0] == 0
    monkeypatch.setenv("DRAINFSM_SIGNERS", stranger.public_key)
    assert verify(capsys, path)[0] == 1


def test_a_seed_that_is_given_in_place_of_a_key_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"")
    seed = new_seed()
    (tmp_path / "agent.nk").write_text(seed)
    for text in (seed, str(tmp_path / "agent.nk")):
        assert main(["verify", "--file", str(tmp_path / "log.jsonl"), "--signer", text]) == 2
        said = capsys.readouterr().err
        assert "public nkey" in said
        assert seed[4:] not in said


@pytest.mark.parametrize("key", ["", "U", "UABC", "x" * 56, "A" * 56])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="is no public nkey"):
        SignersKnown().add(key, where="here")
