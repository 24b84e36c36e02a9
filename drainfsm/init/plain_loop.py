"""The lines that a loop of one's own needs, as edits of its script."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from drainfsm.errors import ScriptRefusedError
from drainfsm.init.calls import Level, Loop, assigned, text_of
from drainfsm.init.loops import TrainingLoop
from drainfsm.init.script import Edit, Script

STATEFUL = "StatefulDataLoader"
NEXT_STEP = "session.last_step + 1"


class Change(NamedTuple):
    """What is proposed for one script."""

    after: str
    """Its whole text."""

    summary: str
    """What was found, in words."""

    notes: tuple[str, ...]
    """What the rules cannot know, for whoever reads the diff."""


def change_plain_loop(script: Script, loop: TrainingLoop) -> Change:
    """Raises: ScriptRefusedError: the lines would not be right; it says what stands in the way."""
    return _Plan(script, loop).change()


class _Plan:
    def __init__(self, script: Script, loop: TrainingLoop) -> None:
        self._script, self._loop = script, loop
        self._outer, self._inner = loop.loops[0][1], loop.loops[-1][1]
        self._is_method = loop.levels[-1].class_ is not None and len(loop.levels) > 1
        self._notes: list[str] = []
        if len(loop.loops) > 2:
            raise self._refused(self._outer, "more than two loops are around the optimizer's step")
        if not loop.model or not all(loop.optimizers):
            what = "model" if not loop.model else "optimizer"
            raise self._refused(
                self._outer, f"no name for the {what} is known where the outermost loop begins"
            )

    def change(self) -> Change:
        steps = self._step_range()
        edits = [*self._setup(steps), *self._boundaries(steps), *self._arguments()]
        imports = ["import drainfsm"]
        loader_edits = list(self._stateful_loader())
        if loader_edits:
            imports.append(f"from torchdata.stateful_dataloader import {STATEFUL}")
        edits += [*loader_edits, self._script.import_lines(*imports)]
        parts = [*self._loop.optimizers, self._loop.model, self._loop.scheduler, self._loop.scaler]
        found = ", ".join(filter(None, [*parts, self._loop.loader]))
        return Change(
            after=self._script.edited(edits),
            summary=f"training loop at {self._script.name}:{self._inner.lineno} ({found})",
            notes=tuple(self._notes),
        )

    def _refused(self, node: ast.stmt, why: str) -> ScriptRefusedError:
        return ScriptRefusedError(f"{self._script.name}:{node.lineno}: {why}")

    def _name(self, name: str) -> str:
        return f"self.{name}" if self._is_method else name

    # --- before and after the outermost loop ----------------------------------------------------

    def _setup(self, steps: ast.Call | None) -> Iterator[Edit]:
        session, checkpoint = self._name("session"), self._name("checkpoint")
        lines = [f"{session} = drainfsm.attach()", *self._checkpoint_lines()]
        if steps is not None:
            yield self._begin_at(steps, f"{checkpoint}.restore()")
        else:
            counter = self._counter()
            lines.append(f"{counter + ' = ' if counter else ''}{checkpoint}.restore()")
            yield from self._first_epoch()
        yield self._script.lines_before(self._outer, *lines)
        yield self._script.lines_after(self._outer, f"{session}.close()")

    def _checkpoint_lines(self) -> list[str]:
        loop, session = self._loop, self._name("session")
        optimizers = loop.optimizers
        optimizer = optimizers[0] if len(optimizers) == 1 else f"[{', '.join(optimizers)}]"
        given = [f"model={loop.model}", f"optimizer={optimizer}"]
        if loop.scheduler:
            given.append(f"scheduler={loop.scheduler}")
        if loop.loader:
            given.append(f"loader={loop.loader}")
        if loop.scaler:
            given.append(f'parts={{"scaler": {loop.scaler}}}')
        begin = f"{self._name('checkpoint')} = {session}.checkpoint("
        line = f"{begin}{', '.join(given)})"
        if len(line) <= 88:
            return [line]
        return [begin, *(f"    {one}," for one in given), ")"]

    def _step_range(self) -> ast.Call | None:
        """``range(…)`` of a single loop whose variable counts optimizer steps from 0."""
        if len(self._loop.loops) != 1 or not isinstance(self._inner, ast.For):
            return None
        found = range_in(self._inner.iter)
        if found is None or self._loop.per_step or not isinstance(self._inner.target, ast.Name):
            return None
        return found if len(found.args) == 1 and len(self._loop.levels) == 1 else None

    def _begin_at(self, steps: ast.Call, text: str) -> Edit:
        at = self._script.start(steps.args[0])
        return Edit(at, at, f"{text}, ")

    def _first_epoch(self) -> Iterator[Edit]:
        """A generation that was saved at an epoch's last step belongs to that epoch: its loader has
        nothing left, and what comes after the epoch's batches is still to be done. One that was
        saved when the loop had ended belongs to the next one."""
        if len(self._loop.loops) == 1:
            return
        epochs = range_in(self._outer.iter) if isinstance(self._outer, ast.For) else None
        if epochs is None or len(epochs.args) > 2:
            raise self._refused(self._outer, "the loop over epochs is not over range(…)")
        if not self._loop.loader:
            raise self._refused(
                self._inner, "the loop over batches is not over a loader that has a name here"
            )
        length = f"len({self._loop.loader})"
        if self._loop.per_step:
            length = f"({length} // {self._loop.per_step})"
        last = f"{self._name('session')}.last_step + {self._name('checkpoint')}.ended"
        done = f"max({last}, 0) // {length}"
        first = epochs.args[0]
        if len(epochs.args) == 1:
            yield self._begin_at(epochs, done)
        elif isinstance(first, ast.Constant) and first.value == 0:
            yield self._script.replaced(first, done)
        else:
            yield self._script.behind(first, f" + {done}")

    def _counter(self) -> str:
        """A count of steps of the script's own, which must go on where it was."""
        for text, value, statement in assigned(self._script):
            if not isinstance(value, ast.Constant) or value.value != 0 or not text:
                continue
            if statement.lineno < self._outer.lineno and text in self._counted():
                return text
        if isinstance(self._inner, ast.While) and not isinstance(self._inner.test, ast.Constant):
            self._notes.append("make the loop's condition go on where the restored step is")
        return ""

    def _counted(self) -> set[str]:
        """Names that one more is added to beside the optimizer's step."""
        parent = self._script.parents[self._loop.anchor]
        body = [one for one in ast.iter_child_nodes(parent) if isinstance(one, ast.AugAssign)]
        names = {text_of(one.target) for one in body if isinstance(one.op, ast.Add)}
        is_here = len(self._loop.levels) == 1
        return {name for name in names if is_here or (self._is_method and "self." in name)}

    # --- inside the loops -----------------------------------------------------------------------

    def _boundaries(self, steps: ast.Call | None) -> Iterator[Edit]:
        """Behind the step, and behind each inner loop or call on the way out. The outermost is
        given first: where loops end together, the lines of the inner one come first."""
        assert isinstance(self._inner, ast.For) or steps is None
        step = NEXT_STEP.replace("session", self._name("session"))
        if steps is not None and isinstance(self._inner, ast.For):
            step = text_of(self._inner.target)
        done = f"{self._name('checkpoint')}.step_done({step})"
        leave = f"if {self._name('session')}.preempted:"
        for level in reversed(self._loop.levels):
            for statement in _left_behind(level):
                yield self._script.lines_after(statement, leave, f"{self._unit(level)}break")
        level = self._loop.levels[0]
        if level.loops:
            yield self._script.lines_after(
                self._loop.anchor, f"if {done}:", f"{self._unit(level)}break"
            )
        else:
            yield self._script.lines_after(self._loop.anchor, done)

    def _unit(self, level: Level) -> str:
        loop = level.loops[-1]
        inner, outer = (self._script.indentation(one) for one in (loop.body[0], loop))
        return inner.removeprefix(outer) or "    "

    # --- between functions ----------------------------------------------------------------------

    def _arguments(self) -> Iterator[Edit]:
        """How the functions below the outermost loop get the session and the checkpoint."""
        if self._is_method:
            classes = {level.class_ for level in self._loop.levels}
            if len(classes) > 1:
                raise self._refused(self._outer, "the loops are in several classes")
            return
        for below, above in zip(self._loop.levels, self._loop.levels[1:], strict=False):
            scope, call = below.scope, above.call
            assert not isinstance(scope, ast.Module)
            assert call is not None
            taken = scope.args
            if taken.vararg or taken.kwarg or below.class_ or not taken.args:
                raise self._refused(scope, f"{scope.name} takes its arguments in an unusual way")
            defaults = [one for one in (*taken.defaults, *taken.kw_defaults) if one is not None]
            last = max((*taken.args, *taken.kwonlyargs, *defaults), key=self._script.end)
            star = "" if taken.kwonlyargs else "*, "
            yield self._script.behind(last, f", {star}session, checkpoint")
            given: list[ast.expr] = [*call.args, *(one.value for one in call.keywords)]
            final = max(given, key=self._script.end)
            yield self._script.behind(final, ", session=session, checkpoint=checkpoint")

    # --- the loader -----------------------------------------------------------------------------

    def _stateful_loader(self) -> Iterator[Edit]:
        """torch's own loader does not know where it stands."""
        loader = self._loop.loader
        if not loader:
            if self._step_range() is None:
                self._notes.append(
                    "no loader is saved: pass what knows the position in the data as loader=…"
                )
            return
        makers = [
            (text, value)
            for text, value, _ in assigned(self._script)
            if isinstance(value, ast.Call) and _last(value) in ("DataLoader", STATEFUL)
        ]
        last = loader.rpartition(".")[2]
        named = [value for text, value in makers if text.rpartition(".")[2] == last]
        calls = named or _all_loaders(self._script)
        if len(calls) != 1:
            self._notes.append(
                f"make {loader} a {STATEFUL} of torchdata, or it starts at its beginning: a loader "
                "without state_dict is refused"
            )
            return
        if _last(calls[0]) != STATEFUL:
            self._notes.append(f"{loader} becomes a {STATEFUL}: pip install torchdata")
            yield self._script.replaced(calls[0].func, STATEFUL)


def _last(call: ast.Call) -> str:
    return text_of(call.func).rpartition(".")[2]


def _all_loaders(script: Script) -> list[ast.Call]:
    calls = [node for node in ast.walk(script.tree) if isinstance(node, ast.Call)]
    return [call for call in calls if _last(call) in ("DataLoader", STATEFUL)]


def range_in(iterated: ast.expr) -> ast.Call | None:
    """Also inside ``tqdm(…)``."""
    at = iterated
    while isinstance(at, ast.Call):
        if text_of(at.func) in ("range", "trange") and at.args:
            return at
        at = at.args[0] if at.args else ast.Constant(value=None)
    return None


def _left_behind(level: Level) -> Iterator[ast.stmt]:
    """Statements of this level's loops in which an inner loop, of here or below, has ended."""
    loops: list[Loop] = level.loops
    for loop in loops:
        below = level.path[level.path.index(loop) + 1 :]
        is_innermost = loop is loops[-1]
        if is_innermost and level.call is None:
            continue
        if below:
            yield below[0]
