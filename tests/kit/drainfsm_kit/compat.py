"""Which changes of a schema break a reader: one of today that meets records of the last release, or
one of that release that meets records of today.

    python -m drainfsm_kit.compat > tests/replay/released_schemas.json     # at a release
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from drainfsm.views.schemas import event_schemas, object_schemas, record_schema

Schema = dict[str, Any]
PROSE = ("description", "title", "$comment", "$schema", "x-version")


def schemas() -> dict[str, Schema]:
    """Of everything that is stored, by name, without prose."""
    found = {"record": record_schema(), **object_schemas()}
    found |= {f"event {kind}": schema for kind, schema in event_schemas().items()}
    bare = {name: _bare(found[name]) for name in sorted(found)}
    read: dict[str, Schema] = json.loads(json.dumps(bare))  # tuples become lists
    return read


def _bare(value: Any) -> Any:
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, inner in value.items():
        if key == "properties":  # a field may be called ``title``
            kept[key] = {name: _bare(field) for name, field in inner.items()}
        elif key not in PROSE:
            kept[key] = _bare(inner)
    return kept


def breaks(old: dict[str, Schema], new: dict[str, Schema]) -> list[str]:
    """One line for each change that a reader does not stand."""
    found = [f"{name} is gone" for name in old if name not in new]
    for name in old:
        if name in new:
            found += _Comparison(old[name], new[name]).of(old[name], new[name], name)
    return found


class _Comparison:
    """Of two documents; definitions are compared where they are used, once."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old.get("$defs", {}), new.get("$defs", {})
        self._seen: set[tuple[str, str]] = set()

    def of(self, old: Schema, new: Schema, where: str) -> Iterator[str]:
        names = (old.get("$ref", ""), new.get("$ref", ""))
        if any(names):
            if names in self._seen:
                return
            self._seen.add(names)
            old, new = self._resolved(old, self._old), self._resolved(new, self._new)
        yield from self._kinds(old, new, where)
        yield from self._values(old, new, where)
        yield from self._fields(old, new, where)
        for key in ("items", "additionalProperties"):
            if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
                yield from self.of(old[key], new[key], f"{where}[]")

    @staticmethod
    def _resolved(schema: Schema, definitions: Schema) -> Schema:
        name = schema.get("$ref", "").rpartition("/")[2]
        return definitions[name] if name else schema

    def _kinds(self, old: Schema, new: Schema, where: str) -> Iterator[str]:
        """Whatever could stand there still can."""
        was, now = self._alternatives(old, self._old), self._alternatives(new, self._new)
        for kind, schema in was.items():
            if kind not in now:
                yield f"{where}: {kind} is not taken any more"
            elif len(was) > 1 or len(now) > 1:
                yield from self.of(schema, now[kind], where)

    def _alternatives(self, schema: Schema, definitions: Schema) -> dict[str, Schema]:
        found = {}
        for one in schema.get("anyOf", [schema]):
            inner = self._resolved(one, definitions)
            tag = inner.get("properties", {}).get("kind", {}).get("enum", [""])[0]
            found[tag or str(inner.get("type", "anything"))] = one
        return found

    def _values(self, old: Schema, new: Schema, where: str) -> Iterator[str]:
        was, now = old.get("enum"), new.get("enum")
        if was and now and set(was) != set(now):
            yield f"{where}: a closed set of words has changed from {sorted(was)} to {sorted(now)}"
        open_words, still = old.get("x-extensible-enum", ()), new.get("x-extensible-enum", ())
        for word in sorted(set(open_words) - set(still)):
            yield f"{where}: {word!r} is not known any more"

    def _fields(self, old: Schema, new: Schema, where: str) -> Iterator[str]:
        was, now = old.get("properties", {}), new.get("properties", {})
        needed, needs = set(old.get("required", ())), set(new.get("required", ()))
        for name in was:
            here = f"{where}.{name}"
            if name not in now:
                yield f"{here} is gone: what it said is lost"
                continue
            if name in needed and name not in needs:
                yield f"{here} may be missing now: a reader of before needs it"
            if was[name].get("default") != now[name].get("default") and name not in needed:
                yield f"{here}: another default changes what records without it say"
            yield from self.of(was[name], now[name], here)
        for name in sorted(needs - needed):
            yield f"{where}.{name} is required: records of before do not have it; give a default"


if __name__ == "__main__":
    json.dump(schemas(), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")
