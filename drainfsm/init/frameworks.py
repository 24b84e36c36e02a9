"""The lines for a loop that a framework owns, as its module of ``drainfsm.frameworks`` says."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

from drainfsm.errors import ScriptRefusedError
from drainfsm.init.calls import Loop, assigned, text_of
from drainfsm.init.loops import training_loop
from drainfsm.init.plain_loop import Change, range_in
from drainfsm.init.script import Edit, Script

Lines = Callable[[Script, ast.Call, list[str]], Iterator[Edit]]
"""Adds to the notes what no rule can do."""

DISTRIBUTED_SAMPLER = "from torch.utils.data.distributed import DistributedSampler"


class Framework(NamedTuple):
    name: str
    module: str
    """Of ``drainfsm.frameworks``."""

    packages: tuple[str, ...]
    maker: str
    """How the name of what owns the loop ends, where it is called."""

    lines: Lines | None = None
    """None: no rule puts them in; the module's first lines say them."""


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


def imports_relatively(script: Script) -> bool:
    """``from .data import …``: it is a module of a package."""
    return any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(script.tree))


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
    notes: list[str] = []
    edits = [*framework.lines(script, call, notes)]
    edits.append(script.import_lines(f"from {framework.module} import drain"))
    return Change(
        after=script.edited(edits),
        summary=f"{framework.name} at {script.name}:{call.lineno}",
        notes=tuple(notes),
    )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def _before_fit(script: Script, call: ast.Call, notes: list[str]) -> Iterator[Edit]:
    """``drain(trainer)`` right before ``trainer.fit(…)``, and what it wants of trainer and data."""
    fit, trainer = _called_on(script, call, "fit")
    yield script.lines_before(_statement(script, fit), f"drain({trainer})")
    for path in (one.value for one in fit.keywords if one.arg == "ckpt_path"):
        yield script.replaced(path, f"{trainer}.ckpt_path or {script.source_of(path)}")
    if any(name.endswith("Checkpoint") for name in _called(script)):
        notes.append(
            "a ModelCheckpoint may stay if it has a monitor; drainfsm does the other saves"
        )
    elif all(one.arg != "enable_checkpointing" for one in call.keywords):
        yield _given(script, call, "enable_checkpointing=False")
    yield from _position_of_data(script, notes)


def _position_of_data(script: Script, notes: list[str]) -> Iterator[Edit]:
    """torch's own loader does not know where it stands, and Lightning's sampler not in which
    order."""
    calls = [node for node in ast.walk(script.tree) if isinstance(node, ast.Call)]
    loaders = [one for one in calls if text_of(one.func).rpartition(".")[2] == "DataLoader"]
    of_training = [one for one in loaders if _function(script, one) == "train_dataloader"]
    stateful = "from torchdata.stateful_dataloader import StatefulDataLoader"
    if len(of_training) != 1 or not of_training[0].args:
        notes.append(
            "the loader of the training data must be a StatefulDataLoader of torchdata, with "
            "sampler=DistributedSampler(…) in the place of shuffle=True"
        )
        return
    loader = of_training[0]
    notes.append("the training data come from a StatefulDataLoader: pip install torchdata")
    yield script.replaced(loader.func, "StatefulDataLoader")
    shuffled = [one for one in loader.keywords if one.arg == "shuffle"]
    if any(not isinstance(one.value, ast.Constant) or one.value.value for one in shuffled):
        of = "num_replicas=self.trainer.world_size, rank=self.trainer.global_rank"
        data = script.source_of(loader.args[0])
        yield script.replaced(shuffled[0], f"sampler=DistributedSampler({data}, {of})")
        yield script.import_lines(stateful, DISTRIBUTED_SAMPLER)
    else:
        yield script.import_lines(stateful)


def _called(script: Script) -> list[str]:
    return [text_of(node.func) for node in ast.walk(script.tree) if isinstance(node, ast.Call)]


def _function(script: Script, node: ast.AST) -> str:
    """The name of the one around it; empty: none."""
    while node in script.parents:
        node = script.parents[node]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return node.name
    return ""


def _given(script: Script, call: ast.Call, keyword: str) -> Edit:
    """One more argument of the call."""
    given: list[ast.expr] = [*call.args, *(one.value for one in call.keywords)]
    if given:
        return script.behind(max(given, key=script.end), f", {keyword}")
    return Edit(script.end(call.func), script.end(call), f"({keyword})")


def _resume_from(script: Script, call: ast.Call, notes: list[str]) -> Iterator[Edit]:
    """``trainer.train(resume_from_checkpoint=drain(trainer))``, and no second saver."""
    yield from _resume_from_drain(script, call)
    calls = [node for node in ast.walk(script.tree) if isinstance(node, ast.Call)]
    made = [one for one in calls if text_of(one.func).endswith("TrainingArguments")]
    best = any(one.arg == "load_best_model_at_end" for made_of in made for one in made_of.keywords)
    if len(made) != 1 or best:
        notes.append('drainfsm saves: give the TrainingArguments save_strategy="no", or "best"')
        return
    for strategy in (one.value for one in made[0].keywords if one.arg == "save_strategy"):
        if not isinstance(strategy, ast.Constant) or strategy.value not in ("no", "best"):
            yield script.replaced(strategy, '"no"')
        return
    yield _given(script, made[0], 'save_strategy="no"')


def _resume_from_drain(script: Script, call: ast.Call) -> Iterator[Edit]:
    train, trainer = _called_on(script, call, "train")
    given = f"drain({trainer})"
    for keyword in train.keywords:
        if keyword.arg == "resume_from_checkpoint":
            yield script.replaced(keyword.value, given)
            return
    if train.args:
        yield script.replaced(train.args[0], given)
    else:
        yield _given(script, train, f"resume_from_checkpoint={given}")


def _loops_of(script: Script, call: ast.Call, notes: list[str]) -> Iterator[Edit]:
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
    if epochs is None or not _begins_at_0(script, epochs) or batches is None:
        raise ScriptRefusedError(
            f"{script.name}:{outer.lineno}: the loops are not over range(n), from 0 on, and a "
            "loader"
        )
    yield from _repeatable_order(script, call)
    yield script.lines_before(outer, f"loop = drain({accelerator})")
    yield script.replaced(epochs, f"loop.epochs({script.source_of(epochs.args[-1])})")
    yield script.replaced(batches, f"loop.batches({script.source_of(batches)})")
    for counted in _steps_counted(inner):
        line = f"{counted} = loop.session.last_step + 1"
        yield script.lines_before(outer.body[0], line)


def _repeatable_order(script: Script, call: ast.Call) -> Iterator[Edit]:
    """Accelerate repeats the order of shuffled data if it is told to."""
    calls = [node for node in ast.walk(script.tree) if isinstance(node, ast.Call)]
    of_loaders = [one.keywords for one in calls if text_of(one.func).endswith("DataLoader")]
    is_shuffled = any(one.arg == "shuffle" for keywords in of_loaders for one in keywords)
    if is_shuffled and all(one.arg != "dataloader_config" for one in call.keywords):
        made = "DataLoaderConfiguration(use_seedable_sampler=True)"
        yield _given(script, call, f"dataloader_config={made}")
        yield script.import_lines("from accelerate.utils import DataLoaderConfiguration")


def _begins_at_0(script: Script, epochs: ast.Call) -> bool:
    """Also by a name that is never anything but 0."""
    if len(epochs.args) != 2:
        return len(epochs.args) == 1
    first = epochs.args[0]
    values: list[ast.expr] = [first] if isinstance(first, ast.Constant) else []
    if name := text_of(first):
        values = [value for text, value, _ in assigned(script) if text == name]
    return bool(values) and all(isinstance(one, ast.Constant) and one.value == 0 for one in values)


def _steps_counted(loop: Loop) -> list[str]:
    """Names that one more is added to where the accelerator has synchronised gradients."""
    found = []
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and text_of(node.test).endswith(".sync_gradients"):
            counts = [one for one in node.body if isinstance(one, ast.AugAssign)]
            found += [text_of(one.target) for one in counts if _is_one_more(one)]
    return [name for name in found if name]


def _is_one_more(counts: ast.AugAssign) -> bool:
    is_one = isinstance(counts.value, ast.Constant) and counts.value.value == 1
    return is_one and isinstance(counts.op, ast.Add)


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
    ),
    Framework(
        "Hugging Face Trainer",
        f"{_MODULES}.transformers",
        ("transformers", "trl"),
        "Trainer",
        _resume_from,
    ),
    Framework("Accelerate", f"{_MODULES}.accelerate", ("accelerate",), "Accelerator", _loops_of),
    Framework("DeepSpeed", f"{_MODULES}.deepspeed", ("deepspeed",), "initialize"),
    Framework("Megatron", f"{_MODULES}.megatron", ("megatron",), "initialize_model_parallel"),
    Framework("Ray Train", f"{_MODULES}.ray", ("ray",), "TorchTrainer"),
    Framework("Composer", f"{_MODULES}.composer", ("composer",), "Trainer"),
)
