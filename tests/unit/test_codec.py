"""Records as bytes: round trip, and what a newer version may have written."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from drainfsm.core import codec
from drainfsm.core.chain import line_digest
from drainfsm.core.events import EVENT_TYPES, KINDS, UnknownFact, kind_of
from drainfsm.core.fold import Fold
from drainfsm.core.inputs import WithdrawNotice
from drainfsm.core.manifest import Commit, Slot
from drainfsm.errors import ManifestMismatchError, RecordUnreadableError
from drainfsm.testing.scenario import Scenario


def _wire(**changed: Any) -> dict[str, Any]:
    record = Scenario().history[0]
    wire: dict[str, Any] = json.loads(codec.encode(record))
    wire.update(changed)
    return wire


def _bytes(wire: dict[str, Any]) -> bytes:
    return json.dumps(wire, separators=(",", ":")).encode()


def test_a_record_is_one_line_of_json_and_comes_back_equal() -> None:
    for record in Scenario().saving().history:
        data = codec.encode(record)
        assert b"\n" not in data
        assert codec.decode(data) == record
        assert codec.encode(codec.decode(data)) == data


def test_the_kind_on_the_wire_is_the_class_name_in_snake_case() -> None:
    assert len(KINDS) == len(EVENT_TYPES)
    assert {"notice_received", "ranks_quiesced", "bytes_staged", "durable"} <= set(KINDS)
    assert {"manifest_published", "exited"} <= set(KINDS)


def test_every_event_class_is_frozen_and_by_keyword_only() -> None:
    for event_type in EVENT_TYPES:
        assert event_type.__struct_config__.frozen, event_type
        assert event_type.__match_args__ == (), event_type


def test_the_first_revision_of_a_notice_is_not_written_and_later_ones_are() -> None:
    """So a record is, byte for byte, what it was before notices had revisions."""
    scenario = Scenario()
    for revision, written in ((1, None), (2, 2)):
        scenario.when(scenario.notice(revision=revision, hard=False))
        wire = json.loads(codec.encode(scenario.history[-1]))
        assert wire["events"][0]["notice"].get("revision") == written
    withdrawn = (Scenario(), Scenario())
    for scenario, revision in zip(withdrawn, (1, 2), strict=True):
        scenario.when(scenario.notice(hard=False, revision=revision))
        scenario.when(WithdrawNotice(source="spot", native_id="n1", revision=revision))
    first, second = (json.loads(codec.encode(s.history[-1]))["events"][0] for s in withdrawn)
    assert (first.get("revision"), second.get("revision")) == (None, 2)


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    wire = _wire(added_later=1)
    wire["events"][0]["added_later"] = {"a": 1}
    assert codec.decode(_bytes(wire)) == Scenario().history[0]


def _of_another_version() -> dict[str, bytes]:
    wire, event = _wire(added_later=1), {"kind": "coffee_brewed", "cups": 3}
    word = _wire(events=json.loads(codec.encode(Scenario().saving().history[3]))["events"])
    word["events"][0]["outcome"] = "frozen"
    older = _wire()
    del older["events"][0]["samples"]
    inside = _wire()
    inside["events"][0]["added_later"] = {"a": 1}
    return {
        "a field of the record": _bytes(wire),
        "a field of an event": _bytes(inside),
        "a kind": _bytes(_wire(events=[event])),
        "a field beside a kind": _bytes(_wire(events=[event], added_later=[])),
        "a word": _bytes(word),
        "a field that is not there": _bytes(older),
        "spaces": json.dumps(_wire()).encode(),
    }


@pytest.mark.parametrize("what", _of_another_version())
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_what_another_version_wrote_is_passed_on_byte_for_byte(what: str, end: bytes) -> None:
    data = _of_another_version()[what]
    record = codec.decode_as_stored(data + end)
    assert codec.encode(record) == data
    assert codec.encode(msgspec.structs.replace(record)) == data
    assert codec.link_behind([record]) == line_digest(data)
    assert [kind_of(one) for one in record.events] == [
        kind_of(e) for e in codec.decode(data).events
    ]


def test_what_this_version_wrote_is_passed_on_as_a_record_like_any_other() -> None:
    for record in Scenario().saving().history:
        assert codec.decode_as_stored(codec.encode(record)) == record


def test_an_unknown_kind_is_kept_byte_for_byte_and_changes_nothing() -> None:
    wire = _wire()
    newer = {"kind": "coffee_brewed", "cups": 3, "why": {"a": [1, 2]}}
    wire["events"].append(newer)
    record = codec.decode(_bytes(wire))
    assert kind_of(record.events[1]) == "coffee_brewed"
    assert isinstance(record.events[1], UnknownFact)
    assert json.loads(codec.encode(record)) == wire
    fold = Fold(job_id="job", epoch=1)
    assert fold.read(record)
    assert fold.state.attempt.started


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b'{"v":1}', b'{"v":1,"id":3}'], ids=repr
)
def test_bytes_that_are_no_record_are_refused_with_their_beginning(data: bytes) -> None:
    with pytest.raises(RecordUnreadableError):
        codec.decode(data)


def test_a_known_kind_with_a_field_of_the_wrong_type_is_refused() -> None:
    wire = _wire()
    wire["events"][0]["node_count"] = "two"
    with pytest.raises(RecordUnreadableError, match="node_count"):
        codec.decode(_bytes(wire))


def test_a_record_of_a_newer_schema_version_asks_for_an_update() -> None:
    with pytest.raises(RecordUnreadableError, match="update"):
        codec.decode(_bytes(_wire(v=2)))


def test_lines_name_the_one_that_is_garbled() -> None:
    data = codec.encode_lines(Scenario().history) + b"\n{oops\n"
    with pytest.raises(RecordUnreadableError, match="line 4"):
        list(codec.decode_lines(data))


def test_a_stored_object_of_a_newer_format_is_refused_and_a_garbled_one_too() -> None:
    data = b'{"kind":"commit","format_version":2}'
    with pytest.raises(ManifestMismatchError, match="format version 2"):
        codec.decode_object(data, Commit, what="slot 1")
    with pytest.raises(ManifestMismatchError, match="slot 1 is garbled"):
        codec.decode_object(b'{"kind":"commit","format_version":1}', Commit, what="slot 1")


def test_slots_are_told_apart_by_their_kind() -> None:
    commit = Commit(
        job_id="job",
        epoch=1,
        attempt_id="a",
        generation_id="g",
        manifest_digest="sha256:00",
        step=3,
        world_size=2,
        total_bytes=9,
        file_count=1,
        committed_unix_ms=5,
    )
    data = codec.encode_object(commit)
    slot: Slot = codec.decode_object(data, Commit, what="slot")
    assert slot == commit
    assert json.loads(data)["kind"] == "commit"
