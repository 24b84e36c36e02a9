"""Bytes as nobody should send them, for every decoder of bytes that somebody else wrote.

A decoder may refuse what it gets with the error that it names, and with no other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from hypothesis import strategies as st

NESTED = 3_000
"""Levels: more than any recursion limit."""

Data = Any
TOKENS: tuple[bytes, ...] = (
    b"", b"\0", b"\xff", b"\xff\xfe\xfd", b"\xed\xa0\x80", b"[" * NESTED, b"]" * NESTED,
    b'{"a":' * NESTED, b"\x91" * NESTED, b"\x81\xa1a" * NESTED, b"9" * 400, b"-1", b"1e999",
    b"NaN", b"null", b"{}", b"[]", b'"', b"\\ud800", b"\\u0000", b"\r\n", b"\n", b" ", b"=",
    b"\xdd\xff\xff\xff\xff",
)  # fmt: skip
ODD_VALUES: tuple[Data, ...] = (
    None, True, -1, 0, 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 1.5, -0.0, 1e308, "", "x", "\0",
    "²", "../../x", "a/b", "\r\n", "9" * 400, 10**400, "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59", "Sun, 06 Nov 9999 08:49:37 -9999", [], {}, [[]], [None],
    {"": None}, {"kind": "zz"}, "ü" * 300,
)  # fmt: skip


PLAIN: dict[str, Data] = {
    "StrType": "a", "BytesType": b"a", "IntType": 1, "FloatType": 1.5, "BoolType": True
}  # fmt: skip


def deep(levels: int = NESTED) -> Data:
    """A list in a list in a list."""
    value: Data = 0
    for _ in range(levels):
        value = [value]
    return value


def example_of(type_: Any) -> Data:
    """A plain value that msgspec takes for that type; each field is given."""
    return _example(msgspec.inspect.type_info(type_))


def _example(info: Any) -> Data:
    name = type(info).__name__
    match name:
        case "StructType":
            made = {field.encode_name: _example(field.type) for field in info.fields}
            return {info.tag_field: info.tag, **made} if info.tag_field else made
        case "UnionType":
            return _example(info.types[0])
        case "VarTupleType" | "ListType" | "SetType" | "FrozenSetType":
            return [_example(info.item_type)]
        case "TupleType":
            return [_example(item) for item in info.item_types]
        case "DictType":
            return {_example(info.key_type): _example(info.value_type)}
        case "EnumType":
            return next(iter(info.cls)).value
        case "LiteralType":
            return info.values[0]
        case _:
            return PLAIN.get(name)


def examples_of(union: Any) -> list[Data]:
    """One of each member."""
    info = msgspec.inspect.type_info(union)
    members = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return [_example(member) for member in members]


# --- mutations ----------------------------------------------------------------------------------


def mutants(seeds: list[bytes], *, packed: bool = False) -> st.SearchStrategy[bytes]:
    """Seeds that were cut, repeated, spliced, or given values that do not belong there."""

    def mutant(seed: int, chance: random.Random) -> bytes:
        data = seeds[seed % len(seeds)]
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            data = _one_change(data, chance, seeds, packed=packed)
        return data

    return st.builds(mutant, st.integers(0, len(seeds) - 1), st.randoms(use_true_random=False))


def _one_change(data: bytes, chance: random.Random, seeds: list[bytes], *, packed: bool) -> bytes:
    if chance.random() < 0.6 and (changed := _restructured(data, chance, packed=packed)):
        return changed
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice((0, 0, 1, 1, 2, 8, 64)))
    match chance.randrange(4):
        case 0:
            middle = chance.choice(TOKENS)
        case 1:
            middle = data[start:end] * 2
        case 2:
            other = chance.choice(seeds)
            middle = other[chance.randrange(len(other) + 1) :]
        case _:
            middle = chance.randbytes(end - start)
    return data[:start] + middle + data[end:]


def _restructured(data: bytes, chance: random.Random, *, packed: bool) -> bytes:
    """One value in it is another one; empty: it is no document any more."""
    try:
        document = msgspec.msgpack.decode(data) if packed else msgspec.json.decode(data)
        places = list(_places(document))
        if not places:
            return b""
        holder, key = chance.choice(places)
        odd = deep(200) if chance.random() < 0.05 else chance.choice(ODD_VALUES)
        if isinstance(holder, dict) and chance.random() < 0.2:
            del holder[key]
        else:
            holder[key] = odd
        return msgspec.msgpack.encode(document) if packed else msgspec.json.encode(document)
    except (ValueError, RecursionError, TypeError, OverflowError):
        return b""


def _places(value: Data) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            yield from _places(value[key])


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """One way in, and how it may say no."""

    name: str
    decode: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    packed: bool = False
    """msgpack; else text, mostly JSON."""

    def take(self, data: bytes) -> bool:
        """False: refused, as it may. Anything else is raised."""
        try:
            self.decode(data)
        except self.refuses:
            return False
        return True

    def strategy(self) -> st.SearchStrategy[bytes]:
        return mutants(list(self.seeds), packed=self.packed) | st.binary(max_size=64)
