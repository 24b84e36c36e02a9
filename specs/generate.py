"""Writes the documents that are taken from the code; with ``--check`` it says which are stale.

python specs/generate.py
python specs/generate.py --check     # exit code 1 if a file is not what would be written
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drainfsm.views import diagram, schemas
from drainfsm_kit import api_page
from drainfsm_kit.site.pictures import PICTURES

SPECS = Path(__file__).parent
MARK = "Written by `make generate` from the code: change that, not this."
GENERATED = (
    "lifecycle",
    "schemas",
    "asyncapi.json",
    "../docs/api.md",
    *(f"../docs/images/{name}.svg" for name in PICTURES),
)
"""Folders hold nothing else."""

LOOSE = {"../docs/images/proofs.svg"}
"""Counts that every new mutation changes: the site draws them anew, the copy here may be behind."""


def documents() -> Iterator[tuple[str, str]]:
    """Every file, by its path in this folder."""
    yield "lifecycle/lifecycle.mmd", _mermaid()
    yield "lifecycle/lifecycle.svg", diagram.svg()
    yield "lifecycle/lifecycle.md", _page()
    yield "schemas/record.schema.json", _json(schemas.record_schema(), mark="$comment")
    for kind, schema in schemas.event_schemas().items():
        yield f"schemas/events/{kind}.schema.json", _json(schema, mark="$comment")
    for name, schema in schemas.object_schemas().items():
        yield f"schemas/{name}.schema.json", _json(schema, mark="$comment")
    yield "../docs/api.md", api_page.page(MARK)
    for name, draw in PICTURES.items():
        yield f"../docs/images/{name}.svg", draw()
    yield "asyncapi.json", _json(schemas.asyncapi(), mark="x-generated")


def _mermaid() -> str:
    """The mark stands behind the front matter: Mermaid wants that on the first line."""
    front, body = diagram.mermaid().split("stateDiagram-v2", 1)
    return f"{front}%% {MARK}\nstateDiagram-v2{body}"


def _page() -> str:
    return (
        f"<!-- {MARK} -->\n\n# Lifecycle of a drain\n\n![the lifecycle](lifecycle.svg)\n\n"
        "*running*: the attempt goes on; *active*: a drain is open; *any*: every state, also "
        f"those at the end.\n\n{diagram.table()}"
    )


def _json(value: dict[str, Any], *, mark: str) -> str:
    return json.dumps({mark: MARK} | value, indent=1, ensure_ascii=False) + "\n"


def stale() -> list[str]:
    """Files that are not what would be written, or that nothing writes any more."""
    wanted = dict(documents())
    there = {
        os.path.relpath(path, SPECS)
        for name in GENERATED
        for path in ((SPECS / name).rglob("*") if (SPECS / name).is_dir() else [SPECS / name])
        if path.is_file()
    }
    differ = [
        name
        for name, text in wanted.items()
        if name not in there or (SPECS / name).read_text(encoding="utf-8") != text
    ]
    return sorted({*differ, *(there - wanted.keys())})


def write() -> None:
    wanted = dict(documents())
    for name in stale():
        path = SPECS / name
        if name not in wanted:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[name], encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        if names := [name for name in stale() if name not in LOOSE]:
            print(f"stale: {', '.join(names)}: run `make generate`")
        return 1 if names else 0
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
