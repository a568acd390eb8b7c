"""The script's own loop without what trains: a generator of micro-batches.

Statements stay if a batch, or the loops and conditions around the training step, depend on them. Everything
else is left out. The generator yields the batch where the script computes its loss, and None where the
script updates the weights.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.slice.emit import GIVEN, Emitter
from migrate.train.slice.keep import Keeper, KeptPart, ReadsLossError, ReadsTrainedError
from migrate.train.slice.loops import (
    TrainingCalls,
    batch_in_loop,
    call_of,
    line_in,
    loop_level,
    loops_around,
    own_block,
)
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.statements import (
    before_definitions,
    every_statement,
    is_exec,
    is_literal,
    names_at_definition,
    parameters,
    settings,
)
from migrate.train.slice.text import (
    FunctionNode,
    ScriptText,
    blocks,
    first_line,
    free_names,
    loads,
    path_to,
    stores,
)

MICRO, ARGUMENTS, HAND_OVER = "micro_batches", "command_line", "hand_over"


@dataclass(frozen=True)
class DataSlice:
    """The generator of batches.

    Attributes:
        text: source, without the head of `data.py`.
        loop: the frame with the training loop.
        kept: lines of the script that are in it.
        rollouts: whether the loop runs the trained modules: they get the program's weights after each update.
        starts: whether they get them before the first rollout too.
    """

    text: str
    loop: Frame
    kept: frozenset[int]
    rollouts: bool = False
    starts: bool = False


def data_slice(
    script: ScriptText,
    events: TrainingCalls,
    loss: LossSlice,
    names: Sequence[str],
    restore_before: Sequence[int] = (),
    trained: Mapping[tuple[str, int], Collection[str]] | None = None,
    places: Mapping[tuple[str, int], Mapping[str, str]] | None = None,
) -> DataSlice:
    """Cut the generator of micro-batches out of a script.

    Args:
        script: the script.
        events: where it trains.
        loss: the statements of the loss.
        names: names in them that are the batch.
        restore_before: lines of statements before which the random generators are restored.
        trained: names of trained modules, optimizers and schedules, by function and its first line.
        places: trained modules of the step and their expressions, by function and its first line. If the
            loop runs them, they get the program's weights after each update. Such a loop may also read what
            the statements of the loss compute: it runs them too.

    Raises:
        TrainError: the loop depends on what a training step computes, or has a form that is not read.
    """
    level = loop_level(script, events.backward)
    values = {name: loss.selected.get(name, name) for name in names}
    if level:  # the function that unpacks the batch is called in the loop
        values = {name: loss.unpacked.get(name, value) for name, value in values.items()}
    values = batch_in_loop(script, events.backward, level, values)
    parts = (script, events, loss, level, values, restore_before, trained or {})
    again = False
    try:
        return _Slicer(*parts, None).slice()
    except ReadsTrainedError as reads:
        if not places:
            raise reads.refusal from None
    except ReadsLossError:
        if not places or not _runs_trained(_Slicer(*parts, None, again=True)):
            raise
        again = True
    try:
        return _Slicer(*parts, places, again=again).slice()
    except ReadsLossError:
        if again:
            raise
    return _Slicer(*parts, places, again=True).slice()


def _runs_trained(slicer: _Slicer) -> bool:
    """Whether the loop runs what it trains, apart from the loss."""
    try:
        slicer.slice()
    except ReadsTrainedError:
        return True
    return False


class _Slicer:
    def __init__(
        self,
        script: ScriptText,
        events: TrainingCalls,
        loss: LossSlice,
        level: int,
        values: Mapping[str, str],
        restore_before: Sequence[int],
        trained: Mapping[tuple[str, int], Collection[str]],
        places: Mapping[tuple[str, int], Mapping[str, str]] | None,
        *,
        again: bool = False,
    ) -> None:
        self._places, self._again = places, again
        self._start: tuple[int, ast.stmt] | None = None
        self._script, self._events, self._loss = script, events, loss
        self._level, self._values = level, dict(values)
        self._restore = set(restore_before)
        self._trained = trained
        self._keeper = Keeper(script)

    def slice(self) -> DataSlice:
        """Slice the loop's function, then its callers, then the module."""
        frames = self._events.backward
        self._start = self._first_loop() if self._places is not None else None
        sliced: dict[ast.AST, KeptPart] = {}
        for level in range(self._level, len(frames)):
            frame = frames[level]
            code = self._script.code(frame.first, frame.function)
            assert code is not None
            if isinstance(code, ast.Module):
                continue
            scope = KeptPart(code.body, frame.line, trained=self._trained_names(frame))
            self._mark(scope, code, level, sliced)
            self._keeper.settle(scope, {argument.arg for argument in parameters(code)})
            self._keeper.require_untrained(scope)
            sliced[code] = scope
        module, lines = self._module(sliced)
        rollouts = self._places is not None
        starts = self._start is not None
        return DataSlice(module, frames[self._level], lines, rollouts, starts)

    def _first_loop(self) -> tuple[int, ast.stmt] | None:
        """Outermost loop around the training step before which the trained modules are there.

        Returns:
            Level of its frame and the loop; None: each loop makes the modules anew.
        """
        frames = self._events.backward
        for level in range(len(frames) - 1, self._level - 1, -1):
            frame = frames[level]
            assert self._places is not None
            places = self._places.get((frame.function, frame.first), {})
            if set().union(*self._places.values()) - set(places):
                continue  # it does not hold all of them
            roots = set[str]().union(*(loads(ast.parse(e)) for e in places.values()))
            for loop in loops_around(self._script, frame):
                if not roots & set[str]().union(*(stores(s)[0] for s in every_statement(loop))):
                    return level, loop
        return None

    def _mark(
        self, scope: KeptPart, code: ast.AST, level: int, sliced: Mapping[ast.AST, KeptPart]
    ) -> None:
        frames = self._events.backward
        frame = frames[level]
        if self._start is not None and self._start[0] == level:
            position = (frame.function, frame.first)
            scope.before[self._start[1]] = self._handed_over(scope, position, frame.line)
        if level > self._level:  # a caller of the function with the loop
            statement = self._statement(code, frame.line)
            scope.marks[statement] = self._delegated(frame, frames[level - 1], sliced, scope)
            return
        items = ", ".join(f"{name!r}: {value}" for name, value in self._values.items())
        text = f"yield {{{items}}}"
        for value in self._values.values():
            scope.need(loads(ast.parse(value)))
        if self._level == 0:
            at = self._whole(code, self._loss.line)
            scope.dropped |= {self._whole(code, first) for first, _ in self._loss.lines} | {
                self._statement(code, frame.line)
            }
        else:
            at = self._statement(code, frame.line)
        scope.dropped.discard(at)
        if self._again and self._level == 0:
            text = f"{text}\n{self._run_again(scope, code, at)}"
        scope.marks[at] = text
        position = (frame.function, frame.first)
        for step in self._events.steps:
            line = line_in(step, position)
            if line is None:
                raise TrainError(
                    f"{self._script.at(step[0].line)}: optimizer.step is outside of the function with "
                    f"the training loop ({self._script.at(frame.first)})",
                    "step the optimizer in the training loop",
                )
            statement = self._statement(code, line)
            update = f"yield None\n{self._handed_over(scope, position, line)}".rstrip()
            if statement is at:
                scope.marks[at] = f"{text}\n{update}"
            else:
                scope.marks[statement] = update
        looped = {s for loop in loops_around(self._script, frame) for s in every_statement(loop)}
        for dropped in self._events.dropped:
            line = line_in(dropped, position)
            if line is not None:
                own = (dropped[0].function, dropped[0].first) == position
                if not own and self._whole(code, line) not in looped:
                    continue  # a function that trains something else, before the loop
                statement = self._statement(code, line)
                if statement not in scope.marks:
                    scope.dropped.add(statement)

    def _run_again(self, scope: KeptPart, code: ast.AST, at: ast.stmt) -> str:
        """Let the statements of the loss run in `data.py` too; return the text of the first of them.

        They run before the update, as in the script: the modules have the weights of the update before.
        """
        every = {self._whole(code, first) for first, _ in self._loss.lines}
        if at not in every:
            return ""  # the loss is an expression of `backward`
        scope.dropped -= every
        scope.again |= every
        scope.need(loads(at))
        return self._script.text(at)

    def _handed_over(self, scope: KeptPart, position: tuple[str, int], line: int) -> str:
        """The statement that gives trained modules the program's weights, if the loop runs them; else ""."""
        if self._places is None:
            return ""
        places = self._places.get(position, {})
        missing = {name for held in self._places.values() for name in held} - set(places)
        if missing or not places:
            which = min(missing, default="a module")
            raise TrainError(
                f"{self._script.at(line)}: the loop runs {which}, which is trained, "
                f"but {position[0]} does not hold it by a name",
                "keep the module in a variable of the training function, or in an attribute of its object",
            )
        for expression in places.values():
            scope.need(loads(ast.parse(expression)))
        items = ", ".join(f"{name!r}: {expression}" for name, expression in places.items())
        return f"{HAND_OVER}({{{items}}})"

    def _statement(self, code: ast.AST, line: int) -> ast.stmt:
        """The statement at a line, which must be a simple one."""
        statement = self._whole(code, line)
        if any(blocks(statement)):
            raise TrainError(
                f"{self._script.at(line)}: a call that trains is part of the head of a block",
                "write it as a statement of its own",
            )
        return statement

    def _whole(self, code: ast.AST, line: int) -> ast.stmt:
        """The statement at a line, with its block: `with torch.no_grad(): …`."""
        block, index = path_to(code, line)[-1]
        return block[index]

    def _delegated(
        self, caller: Frame, called: Frame, sliced: Mapping[ast.AST, KeptPart], scope: KeptPart
    ) -> str:
        """`yield from` the sliced function; arguments that it no longer reads become None."""
        function = self._script.code(called.first, called.function)
        assert isinstance(function, FunctionNode)
        call = call_of(self._script, caller, called)
        needed = sliced[function].needed
        taken = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if isinstance(call.func, ast.Attribute) and taken[:1] == ["self"]:
            taken = taken[1:]
        nothing = ast.Constant(None)
        args = [
            argument if isinstance(argument, ast.Starred) or name in needed else nothing
            for name, argument in zip(taken, call.args, strict=False)
        ]
        args += call.args[len(args) :]
        keywords = [
            ast.keyword(k.arg, k.value if k.arg is None or k.arg in needed else nothing)
            for k in call.keywords
        ]
        shorter = ast.Call(call.func, args, keywords)
        scope.need(loads(shorter))
        text = ast.unparse(ast.fix_missing_locations(shorter))
        return f"yield from {GIVEN}({text})" if function.decorator_list else f"yield from {text}"

    def _trained_names(self, frame: Frame) -> set[str]:
        """Names of what is trained in a frame and in the module."""
        if self._places is not None:
            return set()
        positions = ((frame.function, frame.first), ("<module>", 1))
        return {n for where, names in self._trained.items() if where in positions for n in names}

    def _module(self, sliced: Mapping[ast.AST, KeptPart]) -> tuple[str, frozenset[int]]:
        """The kept parts of the module, and the generator; the lines of the script that are in them."""
        tree, frames = self._script.tree, self._events.backward
        outer = frames[-1]
        body, index = own_block(tree, outer.line)
        main = body[index]
        inside = body is not tree.body
        top = [s for s in tree.body if not (inside and any(c is main for c in ast.walk(s)))]
        whole = [*top, *body[: index + 1]] if inside else tree.body[: index + 1]
        scope = KeptPart(whole, outer.line, trained=self._trained_names(outer))
        if not inside:
            scope.body = [*tree.body[: index + 1]]
        level = len(frames) - 1
        self._mark(scope, tree, level, sliced)
        emitter = Emitter(self._script, self._restore, sliced)
        of_functions = set[str]()
        for code, inner in sliced.items():
            bound = {a.arg for a in parameters(code)} | {  # type: ignore[arg-type]
                name for s in inner.kept for name in stores(s)[0]
            }
            of_functions |= inner.needed - bound
            scope.need(names_at_definition(code))  # type: ignore[arg-type]
        scope.need(of_functions)
        later = [s for s in tree.body if isinstance(s, FunctionNode | ast.ClassDef)]
        scope.body = [*scope.body, *(s for s in later if s not in scope.body)]
        self._settle_module(scope, emitter, sliced)
        self._keeper.require_untrained(scope)
        ordered = [s for s in tree.body if s in scope.kept and s is not main]
        if inside:
            ordered += [s for s in body[:index] if s in scope.kept]
        read = {
            name
            for s in ordered
            if isinstance(s, FunctionNode | ast.ClassDef)
            for name in free_names(s)
        }
        read |= of_functions
        early = before_definitions(ordered) | set(settings(tree, ordered))
        parts, own = [], []
        for statement in ordered:
            stays = isinstance(statement, FunctionNode | ast.ClassDef | ast.Import | ast.ImportFrom)
            # The generators are restored after the seeds, so inside of the function.
            is_setting = is_literal(statement) and first_line(statement) not in self._restore
            if stays or statement in early or is_setting:
                parts.append(emitter.emit(scope, statement, ""))
            else:
                own.append(statement)
        stored = {
            n
            for s in (*own, main)
            for d in every_statement(s)
            if d in scope.kept
            for n in stores(d)[0]
        }
        of_module = {n for s in ordered if s not in own for n in stores(s)[0]}
        shared = sorted(stored & (read | of_module))
        lines = [f"    global {', '.join(shared)}"] if shared else []
        for statement in (*own, main):
            lines.append(emitter.emit(scope, statement, "    "))
        head = f'def {MICRO}():\n    """Yield each micro-batch, and None where the weights are updated."""'
        text = "\n\n".join([*parts, "\n".join([head, *lines])]) + "\n"
        return text, frozenset(emitter.lines)

    def _settle_module(
        self, scope: KeptPart, emitter: Emitter, sliced: Mapping[ast.AST, KeptPart]
    ) -> None:
        """Keep what the module's part needs, with the functions and classes that it names."""
        for statement in scope.body:
            if any(code in sliced for code in ast.walk(statement)) and isinstance(
                statement, FunctionNode | ast.ClassDef
            ):
                scope.kept.add(statement)
        for statement in settings(self._script.tree, scope.body):
            self._keeper.keep(scope, statement, whole=True)
            if is_exec(self._script.tree, statement):
                text = textwrap.indent(ast.unparse(statement), "    ")
                scope.ends[statement] = f"with {ARGUMENTS}():\n{text}"
        while True:
            before = len(scope.kept), len(scope.needed), len(scope.inside)
            for statement in scope.body:
                if isinstance(statement, FunctionNode | ast.ClassDef):
                    if statement.name in scope.needed or statement in scope.kept:
                        scope.kept.add(statement)
                        if statement not in sliced:
                            scope.need(self._names_of(scope, statement, emitter, sliced))
                else:
                    self._keeper.visit(scope, statement)
            if before == (len(scope.kept), len(scope.needed), len(scope.inside)):
                break
        self._keeper.require_independent(scope)

    def _names_of(
        self,
        scope: KeptPart,
        statement: ast.stmt,
        emitter: Emitter,
        sliced: Mapping[ast.AST, KeptPart],
    ) -> set[str]:
        if not isinstance(statement, ast.ClassDef) or not any(c in sliced for c in statement.body):
            return free_names(statement)
        names = {n for d in (*statement.bases, *statement.decorator_list) for n in loads(d)}
        for member in emitter.members(scope, statement):
            if member not in sliced:
                names |= free_names(member)
        return names
