"""The path from an optimizer's step up to the outermost loop around it, through calls of one file.

In many scripts the step is in one function (``train_one_epoch``, ``_run_batch``) and the loop over
epochs in another one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from drainfsm.errors import ScriptRefusedError
from drainfsm.init.script import Script

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"
Loop: TypeAlias = "ast.For | ast.While"
LEVELS_MAX = 6


class Level(NamedTuple):
    """One function on the way, or the file itself."""

    scope: Function | ast.Module
    class_: ast.ClassDef | None
    path: tuple[ast.stmt, ...]
    """Statements from the scope's body down to the one that has the step, or the call."""

    call: ast.Call | None
    """Of the level below; None: the step is here."""

    @property
    def loops(self) -> list[Loop]:
        """Outermost first."""
        return [one for one in self.path if isinstance(one, ast.For | ast.While)]


def text_of(node: ast.AST | None) -> str:
    """``self.model``, ``args.epochs``; empty for what is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := text_of(node.value)):
        return f"{left}.{node.attr}"
    return ""


def assigned(script: Script) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
    """Names with what is assigned to them, and where."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _pairs(target, node.value, node)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield text_of(node.target), node.value, node


def _pairs(
    target: ast.expr, value: ast.expr, node: ast.stmt
) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
    if isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        for number, part in enumerate(target.elts):
            fits = len(values) == len(target.elts)
            yield text_of(part), values[number] if fits else value, node
    elif text := text_of(target):
        yield text, value, node


def levels_of(script: Script, step: ast.Call) -> list[Level]:
    """From the step's function up to the outermost one with a loop.

    Raises:
        ScriptRefusedError: no loop is around the step, or more than one way leads to it.
    """
    levels = [_level(script, step, call=None)]
    while len(levels) < LEVELS_MAX:
        scope = levels[-1].scope
        if isinstance(scope, ast.Module):
            break
        sites = _sites(script, scope)
        if len(sites) > 1 and not any(level.loops for level in levels):
            lines = ", ".join(str(site.lineno) for site in sites)
            raise ScriptRefusedError(f"{script.name}: {scope.name} is called in lines {lines}")
        if len(sites) != 1:
            break
        levels.append(_level(script, sites[0], call=sites[0]))
    while levels and not levels[-1].loops:
        levels.pop()
    if not levels:
        raise ScriptRefusedError(
            f"{script.name}:{step.lineno}: no loop of this file is around the optimizer's step"
        )
    return levels


def _sites(script: Script, scope: Function) -> list[ast.Call]:
    inside = set(ast.walk(scope))
    return [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call)
        and node not in inside
        and text_of(node.func).rpartition(".")[2] == scope.name
    ]


def _level(script: Script, node: ast.AST, *, call: ast.Call | None) -> Level:
    path: list[ast.stmt] = []
    at: ast.AST = node
    while not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
        if isinstance(at, ast.stmt):
            path.append(at)
        if isinstance(at, ast.ClassDef | ast.Lambda | ast.AsyncFor):
            raise ScriptRefusedError(f"{script.name}:{at.lineno}: the loop is of an unusual form")
        at = script.parents[at]
    above = script.parents.get(at)
    class_ = above if isinstance(above, ast.ClassDef) else None
    return Level(scope=at, class_=class_, path=tuple(reversed(path)), call=call)


class Outwards:
    """Names of an inner function as the outermost one knows them."""

    def __init__(self, script: Script, levels: list[Level]) -> None:
        self._script, self._levels = script, levels

    def name(self, text: str, *, level: int) -> str:
        """Empty: the outermost function has no name for it."""
        for number in range(level, len(self._levels) - 1):
            text = self._one_up(text, number)
            if not text:
                return ""
        return text if self._is_visible(text) else ""

    def _one_up(self, text: str, number: int) -> str:
        inner, outer = self._levels[number], self._levels[number + 1]
        root, _, rest = text.partition(".")
        assert not isinstance(inner.scope, ast.Module)
        assert outer.call is not None
        if inner.class_ is not None and root == "self":
            return text if inner.class_ is outer.class_ else ""
        arguments = inner.scope.args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        if root not in (*names, *(one.arg for one in arguments.kwonlyargs)):
            return text if root in _module_names(self._script) else ""
        given = {one.arg: one.value for one in outer.call.keywords}
        offset = 1 if inner.class_ is not None else 0
        given |= dict(zip(names[offset:], outer.call.args, strict=False))
        bound = text_of(given.get(root))
        return f"{bound}.{rest}" if bound and rest else bound

    def _is_visible(self, text: str) -> bool:
        level = self._levels[-1]
        root = text.partition(".")[0]
        if isinstance(level.scope, ast.Module) or root in _module_names(self._script):
            return root in _module_names(self._script)
        arguments = level.scope.args
        names = {one.arg for one in ast.walk(arguments) if isinstance(one, ast.arg)}
        names |= {
            one.id
            for one in ast.walk(level.scope)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            if one.lineno < level.loops[0].lineno
        }
        return root in names


def _module_names(script: Script) -> set[str]:
    """Assigned at the top of the file, also in an ``if`` or a ``with`` there."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(script.tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return names
