"""docs/api.md: every public name with its signature and the first line of its docstring."""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

MODULES = (
    "drainfsm",
    "drainfsm.frameworks",
    "drainfsm.frameworks.accelerate",
    "drainfsm.frameworks.composer",
    "drainfsm.frameworks.dcp",
    "drainfsm.frameworks.deepspeed",
    "drainfsm.frameworks.lightning",
    "drainfsm.frameworks.megatron",
    "drainfsm.frameworks.ray",
    "drainfsm.frameworks.torchtitan",
    "drainfsm.frameworks.transformers",
    "drainfsm.marking",
    "drainfsm.machine",
    "drainfsm.adapter",
    "drainfsm.log",
    "drainfsm.log.events",
    "drainfsm.views",
    "drainfsm.testing",
    "drainfsm.testing.strategies",
    "drainfsm.testing.metadata",
    "drainfsm.errors",
)
"""What may be imported. Everything else may move or change at any time."""

GIVEN_OUT = {
    "AttemptProjection",
    "Checkpoint",
    "Connection",
    "JobProjection",
    "Loop",
    "OwnCheckpoint",
    "Session",
}
"""Made by a function or a method, never by their users."""

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def page(mark: str) -> str:
    """What stands before the mark is written by hand, and kept."""
    above, _, _ = PAGE.read_text(encoding="utf-8").partition("<!--")
    parts = [f"{above}<!-- From here on: {mark} -->\n"]
    for name in MODULES:
        parts.append(f"## `{name}`\n\n{_paragraph(import_module(name))}\n\n{_table(name)}")
    return "\n".join(parts)


def public_names(module_name: str) -> list[str]:
    """``__all__``; of a module without one, the classes that it defines."""
    module = import_module(module_name)
    named = getattr(module, "__all__", None)
    if named is not None:
        return sorted(named, key=lambda name: (name[0].islower(), name))
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module_name
    ]


def _paragraph(module: types.ModuleType) -> str:
    return _one_line(_first_paragraph(module))


def _table(module_name: str) -> str:
    rows = ["| name | what it is |", "|---|---|"]
    for name in public_names(module_name):
        value = getattr(import_module(module_name), name)
        rows.append(f"| `{_signature(name, value)}` | {_told(value)} |")
        if inspect.isclass(value) and not issubclass(value, enum.Enum | BaseException):
            rows += [
                f"| `{owner}.{member}` | {text} |" for owner, member, text in _members(name, value)
            ]
    return "\n".join(rows) + "\n"


def _members(name: str, value: type) -> Iterator[tuple[str, str, str]]:
    """Public methods and properties, without those of a base that is public itself."""
    if issubclass(value, msgspec.Struct):
        return
    for member, given in sorted(vars(value).items()):
        if member.startswith("_"):
            continue
        if isinstance(given, property):
            yield name, member, _told(given)
        elif isinstance(given, classmethod | staticmethod) or inspect.isfunction(given):
            yield name, _signature(member, getattr(value, member)), _told(getattr(value, member))


def _signature(name: str, value: Any) -> str:
    """Structs go by name alone: their fields are in ``specs/schemas`` and in the editor."""
    if inspect.isclass(value):
        if issubclass(value, enum.Enum):
            return f"{name}: {', '.join(value.__members__)}"
        made_elsewhere = issubclass(value, msgspec.Struct | BaseException) or name in GIVEN_OUT
        if made_elsewhere or getattr(value, "_is_protocol", False):
            return name
        return f"{name}{_arguments(value.__init__)}"
    return f"{name}{_arguments(value)}" if inspect.isroutine(value) else name


def _arguments(function: Any) -> str:
    """With types, as the source has them, without ``self``."""
    signature = inspect.signature(function)
    given = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    told, keyword_only = [], False
    for one in given:
        if one.annotation == "Never":  # taken for the sake of an older release
            continue
        if one.kind is one.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            told.append("*")
        default = "" if one.default is one.empty else f" = {_default(one.default)}"
        star = "*" if one.kind is one.VAR_POSITIONAL else ""
        told.append(f"{star}{one.name}: {one.annotation}{default}")
    returns = signature.return_annotation
    back = "" if returns in (signature.empty, "None", None) else f" -> {returns}"
    return _one_line(f"({', '.join(told)}){back}")


def _default(value: Any) -> str:
    return "…" if callable(value) else repr(value)


def _told(value: Any) -> str:
    if isinstance(value, str | int):
        return f"`{value}`" if not isinstance(value, str) or "." not in value else "a string"
    if typing.get_origin(value) is not None or isinstance(value, types.UnionType):
        return "a type"
    if isinstance(value, types.ModuleType):
        return _paragraph(value)
    return _one_line(_first_paragraph(value))


def _first_paragraph(value: Any) -> str:
    """Of the docstring of its own; a struct without one gets a description of its fields."""
    own = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    return (inspect.cleandoc(own) if own else "").split("\n\n")[0]


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("``", "`").replace("|", "\\|").strip()
