"""The lines for a loop that a framework owns, as its module of ``drainfsm.frameworks`` says."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

from drainfsm.errors import ScriptRefusedError
from drainfsm.init.calls import text_of
from drainfsm.init.loops import training_loop
from drainfsm.init.plain_loop import Change, range_in
from drainfsm.init.script import Edit, Script

Lines = Callable[[Script, ast.Call], Iterator[Edit]]


class Framework(NamedTuple):
    name: str
    module: str
    """Of ``drainfsm.frameworks``."""

    packages: tuple[str, ...]
    maker: str
    """How the name of what owns the loop ends, where it is called."""

    lines: Lines | None = None
    """None: no rule puts them in; the module's first lines say them."""

    note: str = ""


def framework_of(script: Script) -> tuple[Framework, ast.Call] | None:
    """The one that owns the loop, and where it is made; None: the loop is the script's own."""
    imported = set(_imported(script))
    calls = [node for node in ast.walk(script.tree) if isinstance(node, ast.Call)]
    for framework in FRAMEWORKS:
        if imported.isdisjoint(framework.packages):
            continue
        for call in calls:
            if text_of(call.func).rpartition(".")[2].endswith(framework.maker):
                return framework, call
    return None


def uses_drainfsm(script: Script) -> bool:
    return "drainfsm" in set(_imported(script))


def _imported(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def change_framework(script: Script, framework: Framework, call: ast.Call) -> Change:
    """Raises: ScriptRefusedError: no rule covers how the script uses the framework."""
    if not _is_there(framework.module):
        raise ScriptRefusedError(
            f"{script.name}:{call.lineno}: {framework.name} owns the loop, and this version "
            "of drainfsm has no module for it"
        )
    if framework.lines is None:
        raise ScriptRefusedError(
            f"{script.name}:{call.lineno}: {framework.name} owns the loop, and no rule puts its "
            f"lines in: they are at the top of {framework.module}"
        )
    edits = [*framework.lines(script, call)]
    edits.append(script.import_lines(f"from {framework.module} import drain"))
    return Change(
        after=script.edited(edits),
        summary=f"{framework.name} at {script.name}:{call.lineno}",
        notes=(framework.note,) if framework.note else (),
    )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def _before_fit(script: Script, call: ast.Call) -> Iterator[Edit]:
    """``drain(trainer)`` right before ``trainer.fit(…)``."""
    fit, trainer = _called_on(script, call, "fit")
    yield script.lines_before(_statement(script, fit), f"drain({trainer})")


def _resume_from(script: Script, call: ast.Call) -> Iterator[Edit]:
    """``trainer.train(resume_from_checkpoint=drain(trainer))``."""
    train, trainer = _called_on(script, call, "train")
    given = f"drain({trainer})"
    for keyword in train.keywords:
        if keyword.arg == "resume_from_checkpoint":
            yield script.replaced(keyword.value, given)
            return
    if train.args:
        yield script.replaced(train.args[0], given)
    elif train.keywords:
        last = max((one.value for one in train.keywords), key=script.end)
        yield script.behind(last, f", resume_from_checkpoint={given}")
    else:
        end = script.end(train)
        yield Edit(script.end(train.func), end, f"(resume_from_checkpoint={given})")


def _loops_of(script: Script, call: ast.Call) -> Iterator[Edit]:
    """``loop.epochs(n)`` and ``loop.batches(loader)`` in the place of what the loops run over."""
    accelerator = _assigned_to(script, call)
    loop = training_loop(script)
    if loop is None or len(loop.loops) != 2 or len(loop.levels) != 1:
        raise ScriptRefusedError(
            f"{script.name}:{call.lineno}: the loops over epochs and batches are not in one place"
        )
    outer, inner = (one for _, one in loop.loops)
    epochs = range_in(outer.iter) if isinstance(outer, ast.For) else None
    batches = _loader_in(inner.iter) if isinstance(inner, ast.For) else None
    if epochs is None or len(epochs.args) != 1 or batches is None:
        raise ScriptRefusedError(
            f"{script.name}:{outer.lineno}: the loops are not over range(n) and a loader"
        )
    yield script.lines_before(outer, f"loop = drain({accelerator})")
    yield script.replaced(epochs.func, "loop.epochs")
    yield script.replaced(batches, f"loop.batches({script.source_of(batches)})")


def _loader_in(iterated: ast.expr) -> ast.expr | None:
    """Also inside ``enumerate(…)`` or ``tqdm(…)``."""
    at = iterated
    while isinstance(at, ast.Call) and at.args:
        at = at.args[0]
    return at if text_of(at) else None


def _called_on(script: Script, made: ast.Call, method: str) -> tuple[ast.Call, str]:
    """The one call of that method of what was made, and its name there."""
    name = _assigned_to(script, made)
    found = [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call) and text_of(node.func) == f"{name}.{method}"
    ]
    if len(found) != 1:
        raise ScriptRefusedError(
            f"{script.name}:{made.lineno}: {name}.{method}(…) is called {len(found)} times"
        )
    return found[0], name


def _assigned_to(script: Script, call: ast.Call) -> str:
    parent = script.parents[call]
    if isinstance(parent, ast.Assign) and (name := text_of(parent.targets[0])):
        return name
    raise ScriptRefusedError(f"{script.name}:{call.lineno}: what is made here gets no name")


def _statement(script: Script, node: ast.AST) -> ast.stmt:
    while not isinstance(node, ast.stmt):
        node = script.parents[node]
    return node


_MODULES = "drainfsm.frameworks"
FRAMEWORKS = (
    Framework(
        "PyTorch Lightning",
        f"{_MODULES}.lightning",
        ("lightning", "pytorch_lightning"),
        "Trainer",
        _before_fit,
        "give the Trainer enable_checkpointing=False, and its loaders the position of their data "
        "(StatefulDataLoader of torchdata)",
    ),
    Framework(
        "Hugging Face Trainer",
        f"{_MODULES}.transformers",
        ("transformers", "trl"),
        "Trainer",
        _resume_from,
        'drainfsm saves: give the TrainingArguments save_strategy="no"',
    ),
    Framework("Accelerate", f"{_MODULES}.accelerate", ("accelerate",), "Accelerator", _loops_of),
    Framework("DeepSpeed", f"{_MODULES}.deepspeed", ("deepspeed",), "initialize"),
    Framework("Megatron", f"{_MODULES}.megatron", ("megatron",), "initialize_model_parallel"),
    Framework("Ray Train", f"{_MODULES}.ray", ("ray",), "TorchTrainer"),
    Framework("Composer", f"{_MODULES}.composer", ("composer",), "Trainer"),
)
