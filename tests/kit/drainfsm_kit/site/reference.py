"""Reference pages from the code: the command line, configuration, events, errors."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from drainfsm import errors
from drainfsm.cli.main import COMMANDS, HELP, module_of
from drainfsm.cli.options import OPTIONS, TABLES
from drainfsm.cli.settings import default_values
from drainfsm.views.schemas import event_schemas

USAGE_ERRORS = ("ConfigError", "NoticeRejectedError", "OtherJobsStoreError")
"""For which the command line exits with 2."""

CONFIGURATION = """\
# Configuration

Every option of `drainfsm run` is also an environment variable and a key of `drainfsm.toml`. The
command line wins, then the environment, then the file.
"""
EVENTS = """\
# Events

What a log holds. Fields without a default are always there. The same as JSON Schema is in
`specs/schemas`, and as AsyncAPI in `specs/asyncapi.json`.
"""
ERRORS = """\
# Errors

What drainfsm raises on purpose. Importable from `drainfsm.errors`; on the command line each is one
line on stderr.
"""


def reference_pages() -> Iterator[tuple[str, str]]:
    """Name and text."""
    yield "cli.md", command_line()
    yield "configuration.md", configuration()
    yield "events.md", events()
    yield "errors.md", error_tree()


def command_line() -> str:
    """Every command, as ``drainfsm COMMAND --help`` prints it."""
    width = max(map(len, COMMANDS)) + 2
    commands = "\n".join(f"  {name:{width}}{text}" for name, text in COMMANDS.items())
    parts = ["# Command line\n", f"```text\n{HELP.format(commands=commands)}```\n"]
    for name, text in COMMANDS.items():
        parts.append(f"## drainfsm {name}\n\n{_sentence(text)}\n\n```text\n{_help(name)}```\n")
    return "\n".join(parts)


def _help(name: str) -> str:
    """Of one width, whoever builds the page."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            text: str = import_module(module_of(name)).parser().format_help()
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return text


def configuration() -> str:
    """Every key of drainfsm.toml, with its option, its variable and its default."""
    defaults = default_values()
    parts = [CONFIGURATION]
    for table in ("", *TABLES):
        rows = [option for option in OPTIONS if option.table == table]
        if not rows:
            continue
        parts.append(f"## {f'[{table}]' if table else 'At the top of the file'}\n")
        parts.append("| key | option | variable | default | what it is |\n|---|---|---|---|---|")
        parts += [
            f"| `{option.key}` | `{option.flag} {_cell(option.metavar)}` | `{option.variable}` "
            f"| {_default(defaults.get(option.key))} | {_cell(option.help)} |"
            for option in rows
        ]
        parts.append("")
    parts.append(
        "## [adapters.NAME]\n\nOptions of one adapter, also as `DRAINFSM_ADAPTER_NAME_KEY`: "
        "[adapters.md](../adapters.md) has them.\n"
    )
    return "\n".join(parts)


def _default(value: object) -> str:
    return "" if value in (None, "") else f"`{value}`"


def events() -> str:
    """Every kind of event with its fields, as the schemas describe them."""
    parts = [EVENTS]
    for kind, schema in sorted(event_schemas().items()):
        parts.append(f"## `{kind}`\n\n{schema.get('description', '')}\n")
        rows = list(_fields(schema))
        if rows:
            parts.append("| field | type | default | what it is |\n|---|---|---|---|")
            parts += [*rows, ""]
    return "\n".join(parts)


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, field in schema["properties"].items():
        if name == "kind":
            continue
        default = "" if name in required else f"`{field.get('default', 'null')}`"
        text = _cell(field.get("description", ""))
        yield f"| `{name}` | {_cell(_type(field))} | {_cell(default)} | {text} |"


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items') or {})}"
    if "enum" in field:
        return ", ".join(f"`{one}`" for one in field["enum"])
    return str(field.get("type", "any"))


def error_tree() -> str:
    """The tree, and each error with the exit code that it leads to."""
    module_text = inspect.getdoc(errors) or ""
    parts = [
        ERRORS,
        f"```text\n{module_text}\n```\n",
        "| error | is a | exit code | what it says |\n|---|---|--:|---|",
    ]
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.DrainfsmError):
            code = 2 if kind.__mro__[0].__name__ in USAGE_ERRORS else 1
            base = kind.__mro__[1].__name__
            parts.append(f"| `{name}` | `{base}` | {code} | {_cell(inspect.getdoc(kind) or '')} |")
    return "\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()
