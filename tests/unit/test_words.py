"""Words that a newer version added: records that hold them are read, replayed and explained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from drainfsm.core import codec
from drainfsm.core.events import EVENT_TYPES, UnknownFact, kind_of
from drainfsm.core.explain import explain
from drainfsm.core.fold import Fold
from drainfsm.core.notice import NoticeClass
from drainfsm.core.records import Record
from drainfsm.core.words import Word
from drainfsm.testing.scenario import NOON_UNIX_MS, Scenario
from drainfsm.views.replay import AttemptLog, encode_line, replay_attempt
from drainfsm.views.table import table

FUTURE = "of_a_newer_version"
Path = tuple[str | int, ...]


def sample(type_: inspect.Type) -> Any:
    """A value of the type as JSON has it, with every optional part filled in."""
    match type_:
        case inspect.StructType():
            tag = {} if type_.tag_field is None else {type_.tag_field: type_.tag}
            return tag | {field.encode_name: sample(field.type) for field in type_.fields}
        case inspect.UnionType():
            return next(sample(one) for one in type_.types if not isinstance(one, inspect.NoneType))
        case inspect.EnumType():
            return next(iter(type_.cls)).value
        case inspect.VarTupleType():
            return [sample(type_.item_type)]
        case inspect.DictType():
            return {sample(type_.key_type): sample(type_.value_type)}
        case inspect.IntType():
            return NOON_UNIX_MS
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return True
    raise AssertionError(f"no sample of {type_}")


def enums(type_: inspect.Type, path: Path = ()) -> Iterator[tuple[Path, type]]:
    """Every place in the type where a word of a set stands."""
    match type_:
        case inspect.EnumType():
            yield path, type_.cls
        case inspect.StructType():
            for field in type_.fields:
                yield from enums(field.type, (*path, field.encode_name))
        case inspect.UnionType():
            for one in type_.types:
                yield from enums(one, path)
        case inspect.VarTupleType():
            yield from enums(type_.item_type, (*path, 0))


PLACES = [
    pytest.param(event_type, path, cls, id=f"{event_type.__name__}.{'.'.join(map(str, path))}")
    for event_type in EVENT_TYPES
    for path, cls in enums(inspect.type_info(event_type))
]


def with_future_word(event_type: type, path: Path) -> dict[str, Any]:
    event: dict[str, Any] = sample(inspect.type_info(event_type))
    holder: Any = event
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = FUTURE
    return event


@pytest.mark.parametrize(("event_type", "path", "cls"), PLACES)
def test_a_word_of_a_newer_version_is_read_replayed_and_explained(
    event_type: type, path: Path, cls: type
) -> None:
    assert issubclass(cls, Word), "a closed set whose new words would make records unreadable"
    scenario = Scenario()
    scenario.given(scenario.notice())
    wire = json.loads(codec.encode(scenario.history[-1]))
    wire |= {"id": "newer", "follows": len(scenario.history)}
    wire["events"] = [with_future_word(event_type, path)]
    data = msgspec.json.encode(wire)
    record = codec.decode(data)
    (event,) = record.events
    assert not isinstance(event, UnknownFact)
    assert json.loads(codec.encode(record)) == wire
    found: Any = event
    for key in path:
        found = found[key] if isinstance(key, int) else getattr(found, key)
    assert isinstance(found, cls)
    assert (found, found.known) == (FUTURE, False)

    records = (*scenario.history, record)
    replayed = replay_attempt(AttemptLog(job_id="job", epoch=1, records=records))
    assert replayed.lines[-1].kind == kind_of(event)
    assert FUTURE.encode() in encode_line(replayed.lines[-1])
    assert "\n".join(table(replayed))
    assert explain(records)


def test_a_whole_drain_in_words_of_a_newer_version_folds_to_the_same_states() -> None:
    scenario = Scenario().saving()
    scenario.given(scenario.staged(), scenario.durable(), scenario.verified())
    scenario.given(scenario.published())
    fold = Fold(job_id="job", epoch=1)
    for record in scenario.history:
        assert fold.read(newer(record))
    assert fold.state.phase is scenario.state.phase
    assert fold.state.attempt.committed == scenario.state.attempt.committed


def newer(record: Record) -> Record:
    wire = json.loads(codec.encode(record))
    for event, data in zip(record.events, wire["events"], strict=True):
        for path, _ in enums(inspect.type_info(type(event))):
            holder: Any = data
            for key in path[:-1]:
                there = key in holder if isinstance(holder, dict) else bool(holder)
                holder = holder[key] if there else None
            if holder is not None and path[-1] in holder:
                holder[path[-1]] = FUTURE
    return codec.decode(msgspec.json.encode(wire))


def test_a_notice_of_a_class_that_is_not_known_cannot_be_taken_back() -> None:
    """Whatever it means, it must not keep a machine for longer than the platform does."""
    scenario = Scenario()
    given = scenario.notice()
    unknown = msgspec.structs.replace(given.notice, notice_class=NoticeClass(FUTURE))
    assert not unknown.revocable
    scenario.when(msgspec.structs.replace(given, notice=unknown))
    assert scenario.state.current.has_hard_notice


def test_a_word_is_equal_to_itself_and_stands_in_no_list() -> None:
    assert NoticeClass(FUTURE) == NoticeClass(FUTURE) == FUTURE
    assert {NoticeClass(FUTURE): 1}[NoticeClass(FUTURE)] == 1
    assert NoticeClass(FUTURE) not in list(NoticeClass)
    assert NoticeClass("hard") is NoticeClass.HARD
    assert NoticeClass.HARD.known
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(3, NoticeClass)
