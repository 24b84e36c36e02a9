"""One Python file: read as Python reads it, edited where its syntax tree says, shown as a diff."""

from __future__ import annotations

import ast
import io
import os
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import NamedTuple

from drainfsm.durable import sync_directory, write_synced
from drainfsm.errors import ScriptRefusedError

SCRIPT_BYTES_MAX = 2_000_000
NO_NEWLINE = "\n\\ No newline at end of file\n"


class Edit(NamedTuple):
    """``text`` in the place of the bytes from ``start`` to ``end`` of the source in UTF-8."""

    start: int
    end: int
    text: str


class Script:
    """A file and its tree. Offsets count bytes of the UTF-8 text, as those of ``ast`` do."""

    def __init__(self, path: Path, *, name: str, data: bytes) -> None:
        """``name``: of the file in messages and in the diff.

        Raises:
            ScriptRefusedError: it is not valid Python.
        """
        self.path, self.name = path, name
        try:
            self.encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
            text = data.decode(self.encoding)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the compiler, about the user's file
                self.tree = ast.parse(data, filename=name)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ScriptRefusedError(f"{name} cannot be read as Python: {error}") from error
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._source = self.text.encode()
        self._starts = [0]
        for line in self._source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    def start(self, node: ast.AST) -> int:
        return self._offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        return self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def source_of(self, node: ast.AST) -> str:
        return self._source[self.start(node) : self.end(node)].decode()

    def indentation(self, statement: ast.stmt) -> str:
        """Raises: ScriptRefusedError: the statement does not begin its line."""
        first = self._starts[statement.lineno - 1]
        before = self._source[first : self.start(statement)].decode()
        if before.strip():
            raise ScriptRefusedError(
                f"{self.name}:{statement.lineno}: several statements stand in one line"
            )
        return before

    def lines_before(self, statement: ast.stmt, *lines: str) -> Edit:
        """Whole lines, indented as the statement is; a decorator or comment stays where it is."""
        at = self._starts[statement.lineno - 1]
        return Edit(at, at, _block(self.indentation(statement), lines))

    def lines_after(self, statement: ast.stmt, *lines: str, as_: ast.stmt | None = None) -> Edit:
        """``as_``: the statement whose indentation they take, where that is another one."""
        indentation = self.indentation(as_ or statement)
        at = self._starts[min(statement.end_lineno or 0, len(self._starts) - 1)]
        missing = "" if self._source[at - 1 : at] == b"\n" else "\n"
        return Edit(at, at, missing + _block(indentation, lines))

    def replaced(self, node: ast.AST, text: str) -> Edit:
        return Edit(self.start(node), self.end(node), text)

    def behind(self, node: ast.AST, text: str) -> Edit:
        return Edit(self.end(node), self.end(node), text)

    def import_lines(self, *lines: str) -> Edit:
        """Behind the imports that the file begins with."""
        last: ast.stmt | None = None
        for statement in self.tree.body:
            if not isinstance(statement, ast.Import | ast.ImportFrom) and not _is_text(statement):
                break
            last = statement
        if last is not None:
            return self.lines_after(last, *lines)
        return self.lines_before(self.tree.body[0], *lines, "")

    def edited(self, edits: Sequence[Edit]) -> str:
        """The whole text with the edits made. Of several at one place, the last one given comes
        first.

        Raises:
            ScriptRefusedError: it would be no valid Python.
        """
        made = self._source
        for edit in sorted(edits, key=lambda one: one.start, reverse=True):
            made = made[: edit.start] + edit.text.encode() + made[edit.end :]
        text = made.decode()
        try:
            compile(text, self.name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise ScriptRefusedError(
                f"{self.name} is written in a way that no rule here covers ({error})"
            ) from error
        return text

    def diff(self, after: str) -> str:
        """Unified, as ``git apply`` and ``patch -p1`` take it."""
        lines = unified_diff(
            self.text.splitlines(keepends=True),
            after.splitlines(keepends=True),
            fromfile=f"a/{self.name}",
            tofile=f"b/{self.name}",
        )
        return "".join(_ended(lines))

    def write(self, after: str) -> None:
        """In the place of the file, or not at all; encoding, line ends and rights stay.

        Raises:
            OSError: it cannot be written.
        """
        target = self.path.resolve()
        data = after.replace("\n", self.newline).encode(self.encoding)
        beside = target.with_name(f".{target.name}.drainfsm-{os.getpid()}")
        write_synced(beside, data)
        try:
            beside.chmod(target.stat().st_mode & 0o7777)
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        sync_directory(target.parent)


def read_script(path: Path, *, name: str) -> Script:
    """Raises: ScriptRefusedError: it cannot be read, or is no Python."""
    try:
        if path.stat().st_size > SCRIPT_BYTES_MAX:
            raise ScriptRefusedError(f"{name} is larger than {SCRIPT_BYTES_MAX} bytes")
        return Script(path, name=name, data=path.read_bytes())
    except OSError as error:
        raise ScriptRefusedError(f"{name} cannot be read: {error.strerror or error}") from error


def _block(indentation: str, lines: Sequence[str]) -> str:
    return "".join(f"{indentation}{line}".rstrip() + "\n" for line in lines)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _ended(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else line + NO_NEWLINE
