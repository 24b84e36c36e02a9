"""Where a script's optimizer steps are, and what else a checkpoint must hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from drainfsm.errors import ScriptRefusedError
from drainfsm.init.calls import Level, Loop, Outwards, assigned, levels_of, text_of
from drainfsm.init.script import Script

_OPTIMIZER = re.compile(r"(^|\.|_)(optim\w*|opts?|opt_?\w)$", re.IGNORECASE)
_OPTIMIZER_MAKER = re.compile(r"(^|\.)optim\.\w+$|Adam|SGD|Lion|Adafactor|RMSprop|Muon|LBFGS")
_SCHEDULER_MAKER = re.compile(r"lr_scheduler|get_\w*schedule|LR$|LRScheduler|Warmup")
_SCALER = re.compile(r"scaler", re.IGNORECASE)
_MODEL = re.compile(r"(^|\.|_)(model|net|network|module|ddp\w*|fsdp\w*)$", re.IGNORECASE)
_BOOKKEEPING = {"step", "update", "zero_grad", "update_parameters"}


class TrainingLoop(NamedTuple):
    """Everything in it is named as the function with the outermost loop names it."""

    levels: list[Level]
    anchor: ast.stmt
    """The last statement that belongs to the optimizer's step."""

    per_step: str
    """How many batches one step takes, as the script writes it; empty: one."""

    optimizers: list[str]
    model: str
    scheduler: str
    scaler: str
    loader: str
    """Empty: the innermost loop runs over something else."""

    @property
    def loops(self) -> list[tuple[int, Loop]]:
        """With the number of their level; outermost first."""
        numbered = enumerate(self.levels)
        return [(at, loop) for at, level in reversed(list(numbered)) for loop in level.loops]


def training_loop(script: Script) -> TrainingLoop | None:
    """None: nothing in the script is an optimizer's step.

    Raises:
        ScriptRefusedError: there is one, but no rule here covers what is around it.
    """
    sites = _step_sites(script)
    if not sites:
        return None
    ways = [levels_of(script, site) for site in sites]
    innermost = {id(_innermost(levels)) for levels in ways}
    if len(innermost) > 1:
        lines = ", ".join(str(site.lineno) for site in sites)
        raise ScriptRefusedError(f"{script.name}: optimizers step in several loops (lines {lines})")
    levels, outwards = ways[-1], Outwards(script, ways[-1])
    anchor, per_step = _anchor(script, levels)
    scaler = _named(sites[-1]) if _is_scaler(script, sites[-1]) else ""
    optimizers = list(dict.fromkeys(_optimizer_of(script, site) for site in sites))
    loader = outwards.name(_iterated(_innermost(levels)), level=_innermost_level(levels))
    return TrainingLoop(
        levels=levels,
        anchor=anchor,
        per_step=outwards.name(per_step, level=0) if per_step.isidentifier() else per_step,
        optimizers=[outwards.name(one, level=0) for one in optimizers],
        model=_model(script, levels, outwards, optimizers),
        scheduler=_scheduler(script, levels, outwards),
        scaler=outwards.name(scaler, level=0) if scaler else "",
        loader=loader,
    )


def _innermost_level(levels: list[Level]) -> int:
    return next(number for number, level in enumerate(levels) if level.loops)


def _innermost(levels: list[Level]) -> Loop:
    return levels[_innermost_level(levels)].loops[-1]


# --- optimizers ---------------------------------------------------------------------------------


def _step_sites(script: Script) -> list[ast.Call]:
    made = {text for text, value, _ in assigned(script) if _makes(value, _OPTIMIZER_MAKER)}
    schedulers = _scheduler_names(script)
    found = []
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Call) or text_of(node.func).rpartition(".")[2] != "step":
            continue
        name = _named(node)
        if name in schedulers:
            continue
        if name in made or _OPTIMIZER.search(name) or _is_scaler(script, node):
            found.append(node)
    return sorted(found, key=lambda node: node.lineno)


def _named(call: ast.Call) -> str:
    """``optimizer`` of ``optimizer.step()``."""
    return text_of(call.func).rpartition(".")[0]


def _is_scaler(script: Script, call: ast.Call) -> bool:
    if not call.args or not text_of(call.args[0]):
        return False
    made = {text for text, value, _ in assigned(script) if _makes(value, re.compile("GradScaler"))}
    return _named(call) in made or bool(_SCALER.search(_named(call)))


def _optimizer_of(script: Script, call: ast.Call) -> str:
    return text_of(call.args[0]) if _is_scaler(script, call) else _named(call)


def _makes(value: ast.expr, maker: re.Pattern[str]) -> bool:
    return isinstance(value, ast.Call) and bool(maker.search(text_of(value.func)))


def _scheduler_names(script: Script) -> set[str]:
    made = {
        text
        for text, value, _ in assigned(script)
        if _makes(value, _SCHEDULER_MAKER) and not _makes(value, _OPTIMIZER_MAKER)
    }
    stepped = {
        _named(node)
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call) and text_of(node.func).endswith(".step")
    }
    return made | {name for name in stepped if "sched" in name.lower()}


# --- where the step ends ------------------------------------------------------------------------


def _anchor(script: Script, levels: list[Level]) -> tuple[ast.stmt, str]:
    """The statement, and the number of batches that one step takes."""
    level = levels[0]
    below = list(level.path)
    if level.loops:
        below = below[below.index(level.loops[-1]) + 1 :]
    per_step, anchor = "", below[0]
    for number, statement in enumerate(below[:-1]):
        if isinstance(statement, ast.If) and (taken := _accumulated(script, statement)):
            per_step, anchor = taken, below[number + 1]
    block = _block_of(script, anchor)
    for following in block[block.index(anchor) + 1 :]:
        if not _is_bookkeeping(following):
            break
        anchor = following
    return anchor, per_step


def _accumulated(script: Script, statement: ast.If) -> str:
    """``4`` of ``if (i + 1) % 4 == 0``."""
    for node in ast.walk(statement.test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return script.source_of(node.right)
    return ""


def _block_of(script: Script, statement: ast.stmt) -> list[ast.stmt]:
    parent = script.parents[statement]
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


def _is_bookkeeping(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return text_of(statement.value.func).rpartition(".")[2] in _BOOKKEEPING


# --- what is saved ------------------------------------------------------------------------------


def _iterated(loop: Loop) -> str:
    """The loader of ``for i, batch in enumerate(tqdm(loader))``."""
    if isinstance(loop, ast.While):
        return ""
    at: ast.expr = loop.iter
    while isinstance(at, ast.Call) and at.args:
        if text_of(at.func) in ("range", "trange"):
            return ""
        at = at.args[0]
    return text_of(at)


def _model(script: Script, levels: list[Level], outwards: Outwards, optimizers: list[str]) -> str:
    """The first candidate that the outermost function knows.

    Raises:
        ScriptRefusedError: there are several.
    """
    made_of = list(dict.fromkeys(_made_of(script, optimizers)))
    if len(optimizers) > 1 and len(made_of) > 1:
        raise ScriptRefusedError(
            f"{script.name}: the optimizers are of several models ({', '.join(made_of)}): "
            "make them one, in an nn.ModuleDict"
        )
    for text in made_of:
        for name in (text, f"self.{text}"):
            if found := outwards.name(name, level=len(levels) - 1):
                return found
    for number, call in _calls(levels):
        for name in _called_models(call):
            if found := outwards.name(name, level=number):
                return found
    return ""


def _made_of(script: Script, optimizers: list[str]) -> Iterator[str]:
    """Whose parameters the optimizers were made of."""
    last = {one.rpartition(".")[2] for one in optimizers}
    for text, value, _ in assigned(script):
        if not isinstance(value, ast.Call):
            continue
        if text.rpartition(".")[2] in last or _makes(value, _OPTIMIZER_MAKER):
            for node in ast.walk(value):
                if isinstance(node, ast.Call) and _is_parameters(node):
                    yield _named(node).removesuffix(".module")


def _is_parameters(call: ast.Call) -> bool:
    return text_of(call.func).rpartition(".")[2] in ("parameters", "named_parameters")


def _called_models(call: ast.Call) -> Iterator[str]:
    """``model.train()``, its parameters are clipped, or it is called."""
    is_train = text_of(call.func).endswith(".train") and not call.args and not call.keywords
    if is_train or _is_parameters(call):
        yield _named(call).removesuffix(".module")
    if _MODEL.search(text_of(call.func)):
        yield text_of(call.func)


def _scheduler(script: Script, levels: list[Level], outwards: Outwards) -> str:
    names = _scheduler_names(script)
    for number, call in _calls(levels):
        name = _named(call)
        is_step = text_of(call.func).endswith(".step") and name in names
        if is_step and (found := outwards.name(name, level=number)):
            return found
    return ""


def _calls(levels: list[Level]) -> Iterator[tuple[int, ast.Call]]:
    for number, level in enumerate(levels):
        for node in ast.walk(level.scope):
            if isinstance(node, ast.Call):
                yield number, node
