"""The script's own loop without what trains: a generator of micro-batches.

Statements stay if a batch, or the loops and conditions around the training step, depend on them. Everything
else is left out. The generator yields the batch where the script computes its loss, and None where the
script updates the weights.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.slice.emit import GIVEN, Emitter
from migrate.train.slice.forwards import ForwardOf
from migrate.train.slice.keep import Keeper, KeptPart, ReadsLossError, ReadsTrainedError
from migrate.train.slice.logged import (
    Logged,
    UpdateNames,
    last_return,
    require_after_update,
    same_block,
    targets_of,
)
from migrate.train.slice.loops import (
    LOOPS,
    TrainingCalls,
    batch_in_loop,
    call_of,
    line_in,
    loop_level,
    loops_around,
    own_block,
    parameters_of,
)
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.statements import (
    before_definitions,
    every_statement,
    is_exec,
    is_literal,
    names_at_definition,
    names_read,
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
    root,
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


@dataclass(frozen=True)
class BatchOf:
    """Batch of an update of the weights.

    Attributes:
        events: where the script makes the update.
        loss: the statements of its loss.
        level: index of the frame with the training loop.
        values: name in the loss → the expression of it in that frame.
        name: name of the update; "" if there is no other one.
        places: its trained modules and their expressions, by function and its first line.
    """

    events: TrainingCalls
    loss: LossSlice
    level: int
    values: Mapping[str, str]
    name: str = ""
    places: Mapping[tuple[str, int], Mapping[str, str]] | None = None

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Frames from the one with the training loop on."""
        return self.events.backward[self.level :]

    def yielded(self, value: str) -> str:
        """The statement that gives a batch, or None after the last one of an update."""
        return f"yield {self.name!r}, {value}" if self.name else f"yield {value}"


def batch_of(
    script: ScriptText,
    events: TrainingCalls,
    loss: LossSlice,
    names: Sequence[str],
    name: str = "",
    places: Mapping[tuple[str, int], Mapping[str, str]] | None = None,
) -> BatchOf:
    """Find the batch of an update in the frame with the training loop.

    Args:
        script: the script.
        events: where it trains.
        loss: the statements of the loss.
        names: names in them that are the batch.
        name: name of the update, if there are several.
        places: trained modules of the update, by function and its first line.
    """
    level = loop_level(script, events.backward)
    values = {name: loss.selected.get(name, name) for name in names}
    if level:  # the function that unpacks the batch is called in the loop
        values = {name: loss.unpacked.get(name, value) for name, value in values.items()}
    values = batch_in_loop(script, events.backward, level, values)
    return BatchOf(events, loss, level, values, name, places)


def data_slice(
    script: ScriptText,
    events: TrainingCalls,
    loss: LossSlice,
    names: Sequence[str],
    restore_before: Sequence[int] = (),
    trained: Mapping[tuple[str, int], Collection[str]] | None = None,
    places: Mapping[tuple[str, int], Mapping[str, str]] | None = None,
    evaluations: Sequence[Sequence[Frame]] = (),
    logged: Logged | None = None,
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
        evaluations: frames of the calls that evaluate, innermost first. The script has the values of the
            program there.
        logged: log lines that stay, with values of the program.

    Raises:
        TrainError: the loop depends on what a training step computes, or has a form that is not read.
    """
    script = logged.written(script) if logged else script
    places = None if evaluations or logged else places
    batch = batch_of(script, events, loss, names, places=places)
    return batches_slice(
        script, [batch], restore_before, trained, evaluations=evaluations, logged=logged
    )


def batches_slice(
    script: ScriptText,
    batches: Sequence[BatchOf],
    restore_before: Sequence[int] = (),
    trained: Mapping[tuple[str, int], Collection[str]] | None = None,
    forwards: Sequence[ForwardOf] = (),
    evaluations: Sequence[Sequence[Frame]] = (),
    logged: Logged | None = None,
) -> DataSlice:
    """Cut the generator of the micro-batches of all updates out of a script, as `data_slice` of one.

    It also gives the inputs of `forwards`.

    Raises:
        TrainError: the loop depends on what a training step computes, or has a form that is not read.
    """
    places = any(batch.places for batch in batches)
    parts = (script, batches, restore_before, trained or {}, forwards, evaluations, logged)
    again = False
    try:
        return _Slicer(*parts).slice()
    except ReadsTrainedError as reads:
        if not places:
            raise reads.refusal from None
    except ReadsLossError:
        if not places or not _runs_trained(_Slicer(*parts, again=True)):
            raise
        again = True
    try:
        return _Slicer(*parts, hands_over=places, again=again).slice()
    except ReadsLossError:
        if again:
            raise
    return _Slicer(*parts, hands_over=places, again=True).slice()


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
        batches: Sequence[BatchOf],
        restore_before: Sequence[int],
        trained: Mapping[tuple[str, int], Collection[str]],
        forwards: Sequence[ForwardOf],
        evaluations: Sequence[Sequence[Frame]] = (),
        logged: Logged | None = None,
        *,
        hands_over: bool = False,
        again: bool = False,
    ) -> None:
        self._hands_over, self._again = hands_over, again
        self._start: tuple[Frame, ast.stmt] | None = None
        self._script, self._batches = script, batches
        self._restore = set(restore_before)
        self._trained, self._forwards = trained, forwards
        self._evaluations, self._logged = evaluations, logged
        self._keeper = Keeper(script)
        self._places: dict[tuple[str, int], dict[str, str]] = {}
        for batch in batches if hands_over else ():
            for position, places in (batch.places or {}).items():
                self._places.setdefault(position, {}).update(places)

    def slice(self) -> DataSlice:
        """Slice the functions with the loops, then their callers, then the module."""
        self._start = self._first_loop() if self._hands_over else None
        sliced: dict[ast.AST, KeptPart] = {}
        codes = self._codes()
        self._keeper.follow(code for code, _ in codes)
        for code, calls in codes:
            if isinstance(code, ast.Module):
                continue
            frames = [batch.frames[n] for batch, n in calls]
            trained = set[str]().union(*map(self._trained_names, frames))
            scope = KeptPart(code.body, max(f.line for f in frames), trained=trained)  # type: ignore[attr-defined]
            for batch, n in calls:
                self._mark(scope, code, batch, n, sliced)
            self._mark_forwards(scope, code)
            scope.dropped -= set(scope.marks)
            self._ask(scope, code)
            self._give(scope, code)
            self._keeper.settle(scope, {argument.arg for argument in parameters(code)})  # type: ignore[arg-type]
            self._keeper.require_untrained(scope)
            self._require_logs(scope)
            sliced[code] = scope
        module, lines = self._module(sliced)
        starts = self._start is not None
        return DataSlice(module, self._batches[0].frames[0], lines, self._hands_over, starts)

    def _codes(self) -> list[tuple[ast.AST, list[tuple[BatchOf, int]]]]:
        """Functions with a loop that trains, or a call of one, innermost first; with the calls in each."""
        depths: dict[ast.AST, int] = {}
        calls: dict[ast.AST, list[tuple[BatchOf, int]]] = {}
        for batch in self._batches:
            for n, frame in enumerate(batch.frames):
                code = self._script.code(frame.first, frame.function)
                assert code is not None
                depths[code] = max(depths.get(code, 0), len(batch.frames) - n)
                calls.setdefault(code, []).append((batch, n))
        return sorted(calls.items(), key=lambda item: -depths[item[0]])

    def _first_loop(self) -> tuple[Frame, ast.stmt] | None:
        """Outermost loop around the training step before which the trained modules are there.

        Returns:
            Its frame and the loop; None: each loop makes the modules anew.
        """
        for frame in reversed(self._batches[0].frames):
            places = self._places.get((frame.function, frame.first), {})
            if set[str]().union(*self._places.values()) - set(places):
                continue  # it does not hold all of them
            roots = set[str]().union(*(loads(ast.parse(e)) for e in places.values()))
            for loop in loops_around(self._script, frame):
                if not roots & set[str]().union(*(stores(s)[0] for s in every_statement(loop))):
                    return frame, loop
        return None

    def _mark(
        self,
        scope: KeptPart,
        code: ast.AST,
        batch: BatchOf,
        n: int,
        sliced: Mapping[ast.AST, KeptPart],
    ) -> None:
        events, frame = batch.events, batch.frames[n]
        position = (frame.function, frame.first)
        if self._start is not None and self._start[0] == frame:
            places = self._places[position]
            for expression in places.values():
                scope.need(loads(ast.parse(expression)))
            scope.before[self._start[1]] = _hand_over(places)
        if n:  # a caller of the function with the loop
            statement = self._statement(code, frame.line)
            text = self._delegated(frame, batch.frames[n - 1], sliced, scope)
            called = self._script.code(batch.frames[n - 1].first, batch.frames[n - 1].function)
            returns = self._logged is not None and self._logged.returns and last_return(called)
            if returns and targets_of(statement):
                assert isinstance(statement, ast.Assign)
                text = f"{ast.unparse(statement.targets[0])} = {text}"
            scope.marks[statement] = text
            return
        items = ", ".join(f"{name!r}: {value}" for name, value in batch.values.items())
        text = batch.yielded(f"{{{items}}}")
        for value in batch.values.values():
            scope.need(loads(ast.parse(value)))
        if batch.level == 0:
            at = self._whole(code, batch.loss.line)
            own = [self._whole(code, first) for first, _ in batch.loss.lines]
            if batch.loss.drawn:  # the numbers may depend on the size of the batch
                own = self._computed(own, scope.trained)
                drawn = max(batch.loss.drawn.values())
                at = next(s for s in own if first_line(s) > drawn)
            lines = events.backwards
            scope.dropped |= {*own, *(self._statement(code, line) for line in lines)}
        else:
            at = self._statement(code, frame.line)
        if self._again and batch.level == 0:
            text = f"{text}\n{self._run_again(scope, code, at, batch.loss)}"
        together = self._logged is not None and self._is_one_block(code, batch)
        if self._logged and together:  # what reads the loss may stand before the step
            text = f"{text}\n{batch.yielded('None')}\n{self._logged.assignments}".rstrip()
        scope.marks[at] = "\n".join((*filter(None, (scope.marks.get(at),)), text))
        updated: set[ast.stmt] = set()
        for step in events.steps:
            line = line_in(step, position)
            if line is None:
                raise TrainError(
                    f"{self._script.at(step[0].line)}: optimizer.step is outside of the function with "
                    f"the training loop ({self._script.at(frame.first)})",
                    "step the optimizer in the training loop",
                )
            statement = self._statement(code, line)
            if statement in updated:
                continue
            updated.add(statement)
            if together:
                scope.dropped.add(statement)
                continue
            update = batch.yielded("None")
            if self._logged:
                update = f"{update}\n{self._logged.assignments}".rstrip()
            update = f"{update}\n{self._handed_over(scope, batch, position, line)}".rstrip()
            if condition := events.when.get(first_line(statement)):
                scope.need(loads(ast.parse(condition)))
                update = f"if {condition}:\n{textwrap.indent(update, '    ')}"
            before = scope.marks.get(statement)
            scope.marks[statement] = f"{before}\n{update}" if before else update
        looped = {s for loop in loops_around(self._script, frame) for s in every_statement(loop)}
        for dropped in events.dropped:
            line = line_in(dropped, position)
            if line is not None:
                own_call = (dropped[0].function, dropped[0].first) == position
                if not own_call and self._whole(code, line) not in looped:
                    continue  # a function that trains something else, before the loop
                statement = self._statement(code, line)
                if statement not in scope.marks:
                    scope.dropped.add(statement)

    def _is_one_block(self, code: ast.AST, batch: BatchOf) -> bool:
        """Whether the backward and the one step of an update stand in one block."""
        backward, *others = (batch.events.backward, *batch.events.steps)
        own = [(frames[0].function, frames[0].first) for frames in (backward, *others)]
        lines = batch.loss.line, *(frames[0].line for frames in others)
        return (
            not batch.events.when
            and len(others) == 1
            and own[0] == own[1]
            and not batch.level
            and same_block(code, *lines)
        )

    def _give(self, scope: KeptPart, code: ast.AST) -> None:
        """Keep log lines in a function around the training step, and note which names get values."""
        if self._logged is None:
            return
        [batch] = self._batches
        simple = {s for top in scope.body for s in every_statement(top) if not any(blocks(s))}
        printing = {s for s in simple if first_line(s) in self._logged.lines}
        scope.asked |= printing - {*scope.marks}
        for statement in printing:
            scope.ends.pop(statement, None)
        if self._logged.returns and (last := last_return(code)):
            scope.asked.add(last)
        frame = batch.frames[0]
        if self._script.code(frame.first, frame.function) is not code:
            self._give_returned(scope, code)
            return
        together = self._is_one_block(code, batch)
        region = {*every_statement(loops_around(self._script, frame)[-1])}
        if not together:
            block, index = path_to(code, batch.events.steps[0][0].line)[-1]
            region = {s for top in block[index + 1 :] for s in every_statement(top)}
        scope.of_update = UpdateNames(
            frozenset(self._logged.values),
            frozenset(region),
            together,
            frozenset({*scope.dropped, *scope.marks}),
        )

    def _give_returned(self, scope: KeptPart, code: ast.AST) -> None:
        """Note which names of a caller get what the function with the loop returns."""
        for frame in self._batches[0].frames[1:]:
            if self._script.code(frame.first, frame.function) is code:
                statement = self._whole(code, frame.line)
                if " = yield from " in scope.marks.get(statement, ""):
                    loops = loops_around(self._script, frame)
                    region = every_statement(loops[-1]) if loops else ()
                    trains = frozenset({*scope.dropped, *scope.marks})
                    scope.of_update = UpdateNames(
                        targets_of(statement), frozenset(region), True, trains
                    )

    def _require_logs(self, scope: KeptPart) -> None:
        """Require that log lines read values of the update, and nothing else that is trained."""
        if self._logged is not None:
            require_after_update(self._script, scope.body, scope.kept, scope.of_update)
            self._keeper.require_logs_untrained(scope)

    def _mark_forwards(self, scope: KeptPart, code: ast.AST) -> None:
        """Let calls of modules outside of the updates give their inputs."""
        for forward in self._forwards:
            if self._script.code(forward.frame.first, forward.frame.function) is not code:
                continue
            statement = self._statement(code, forward.frame.line)
            read = set[str]().union(*(loads(ast.parse(v)) for v in forward.values.values()))
            if statement in scope.marks or read & scope.trained:
                raise TrainError(
                    f"{self._script.at(forward.frame.line)}: this call depends on what is trained",
                    "call the module on data alone",
                )
            scope.need(read)
            scope.marks[statement] = forward.yielded

    def _ask(self, scope: KeptPart, code: ast.AST) -> None:
        """Keep calls that evaluate in a function with the training loop, and what reads their values."""
        own = {(f.function, f.first) for batch in self._batches for f in batch.frames}
        for chain in self._evaluations:
            frame = next((f for f in chain if (f.function, f.first) in own), None)
            if frame is None:
                raise TrainError(
                    f"{self._script.at(chain[0].line)}: this evaluation is called outside of the "
                    "function with the training loop",
                    "call it in the training loop",
                )
            if self._script.code(frame.first, frame.function) is not code:
                continue
            path = [block[index] for block, index in path_to(code, frame.line)]
            apart = [s for s in path if not scope.trains(s)]
            heads = [s for s in apart if not isinstance(s, ast.If | ast.Try)]
            if not heads or heads[0] in (*scope.marks, *scope.dropped):
                raise TrainError(
                    f"{self._script.at(frame.line)}: this evaluation is part of the head of a block",
                    "write it as a statement of its own",
                )
            scope.asked.add(heads[0])
        if scope.asked:
            self._ask_readers(scope)

    def _ask_readers(self, scope: KeptPart) -> None:
        """Keep sums, means and prints of the values of an evaluation, but for what reads what is trained."""
        loops, unknown = self._keeper.loop_names(scope), _of_training(scope)
        inner = {n for s in scope.asked for n in ast.walk(s)}
        simple = [
            s
            for top in scope.body
            if not isinstance(top, FunctionNode | ast.ClassDef)
            for s in every_statement(top)
            if not any(blocks(s)) and s not in inner and s not in scope.marks
        ]
        while True:
            known = {
                n for s in scope.asked for d in every_statement(s) for n in set().union(*stores(d))
            }
            known -= loops | unknown
            more = [
                s
                for s in simple
                if s not in scope.asked
                and s not in scope.dropped
                and _reads_values(s, known)
                and not names_read(s) & (scope.trained | unknown)
            ]
            if not more:
                break
            scope.asked |= {*more}
        for statement in simple:
            # Of a line with what the training step computes, the program prints the rest.
            is_print = isinstance(statement, ast.Expr) and _reads_values(statement, known)
            if (
                is_print
                and statement not in scope.asked
                and not names_read(statement) & scope.trained
            ):
                nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
                read = dict.fromkeys(n.id for n in nodes if n.id in known | loops)
                names = [n for n in read if n not in unknown]
                scope.ends[statement] = f"print({', '.join(f'{n!r}, {n}' for n in names)})"
                scope.asked.add(statement)

    def _computed(self, statements: Sequence[ast.stmt], trained: Collection[str]) -> list[ast.stmt]:
        """Statements that run what is trained, or read what these compute."""
        names = {name.partition(".")[0] for name in trained}
        computed = []
        for statement in statements:
            if loads(statement) & names:
                computed.append(statement)
                names |= stores(statement)[0]
        return computed

    def _run_again(self, scope: KeptPart, code: ast.AST, at: ast.stmt, loss: LossSlice) -> str:
        """Let the statements of the loss run in `data.py` too; return the text of the first of them.

        They run before the update, as in the script: the modules have the weights of the update before.
        """
        every = {self._whole(code, first) for first, _ in loss.lines}
        if at not in every:
            return ""  # the loss is an expression of `backward`
        scope.dropped -= every
        scope.again |= every
        scope.need(loads(at))
        return self._script.text(at)

    def _handed_over(
        self, scope: KeptPart, batch: BatchOf, position: tuple[str, int], line: int
    ) -> str:
        """The statement that gives trained modules the program's weights, if the loop runs them; else ""."""
        if not self._hands_over:
            return ""
        every = batch.places or {}
        places = every.get(position, {})
        missing = {name for held in every.values() for name in held} - set(places)
        if missing or not places:
            which = min(missing, default="a module")
            raise TrainError(
                f"{self._script.at(line)}: the loop runs {which}, which is trained, "
                f"but {position[0]} does not hold it by a name",
                "keep the module in a variable of the training function, or in an attribute of its object",
            )
        for expression in places.values():
            scope.need(loads(ast.parse(expression)))
        return _hand_over(places)

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
        taken = parameters_of(function, call)
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
        if self._hands_over:
            return set()
        positions = ((frame.function, frame.first), ("<module>", 1))
        return {n for where, names in self._trained.items() if where in positions for n in names}

    def _module(self, sliced: Mapping[ast.AST, KeptPart]) -> tuple[str, frozenset[int]]:
        """The kept parts of the module, and the generator; the lines of the script that are in them."""
        tree = self._script.tree
        outer = max((batch.frames[-1] for batch in self._batches), key=lambda frame: frame.line)
        body, index = own_block(tree, outer.line)
        main = body[index]
        inside = body is not tree.body
        top = [s for s in tree.body if not (inside and any(c is main for c in ast.walk(s)))]
        whole = [*top, *body[: index + 1]] if inside else tree.body[: index + 1]
        last = [batch.frames[-1] for batch in self._batches]
        trained = set[str]().union(*map(self._trained_names, last))
        scope = KeptPart(whole, outer.line, trained=trained)
        if not inside:
            scope.body = [*tree.body[: index + 1]]
        for batch in self._batches:
            self._mark(scope, tree, batch, len(batch.frames) - 1, sliced)
        self._mark_forwards(scope, tree)
        scope.dropped -= set(scope.marks)
        after = body[index + 1 :]
        scope.body = [*scope.body, *after]
        self._ask(scope, tree)
        self._give(scope, tree)
        asked = [s for s in after if any(n in scope.asked for n in ast.walk(s))]
        scope.body = [s for s in scope.body if s not in after or s in asked]
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
        self._require_logs(scope)
        ordered = [s for s in tree.body if s in scope.kept and s is not main and s not in asked]
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
            for s in (*own, main, *asked)
            for d in every_statement(s)
            if d in scope.kept
            for n in stores(d)[0]
        }
        of_module = {n for s in ordered if s not in own for n in stores(s)[0]}
        shared = sorted(stored & (read | of_module))
        lines = [f"    global {', '.join(shared)}"] if shared else []
        for statement in (*own, main, *asked):
            lines.append(emitter.emit(scope, statement, "    "))
        head = f'def {MICRO}():\n    """Yield each micro-batch, and None where the weights are updated."""'
        text = _spaced(parts) + "\n\n" + "\n".join([head, *lines]) + "\n"
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


def _spaced(parts: Sequence[str]) -> str:
    """Statements of the module, as the script has them: settings of one line each stand together."""
    text = ""
    for before, part in zip(("", *parts), parts, strict=False):
        together = all(re.fullmatch(r"\w+ = .*", each) for each in (before, part))
        text += ("\n" if together else "\n\n") * bool(text) + part
    return text


def _of_training(scope: KeptPart) -> set[str]:
    """Names of what the training step computes, and of sums of it: `data.py` does not have them."""
    training = {s for s in (*scope.dropped, *scope.marks) if not any(blocks(s))}
    names = set[str]().union(*(stores(s)[0] for s in training))
    loops = [s for top in scope.body for s in every_statement(top) if isinstance(s, LOOPS)]
    around = {s for loop in loops if scope.trains(loop) for s in every_statement(loop)}
    inner = {n for s in scope.asked for n in ast.walk(s)}
    rest = [s for s in around if not any(blocks(s)) and s not in training and s not in inner]
    while True:
        more = {
            name
            for s in rest
            if isinstance(s, ast.Assign | ast.AugAssign) and loads(s) & names
            for bound in stores(s)
            for name in bound
        }
        if more <= names:
            return names
        names |= more


def _reads_values(statement: ast.stmt, values: Collection[str]) -> bool:
    """Whether a statement computes with values of an evaluation, prints them, or adds them to a list."""
    if isinstance(statement, ast.AugAssign):
        return bool({root(statement.target), *loads(statement)} & {*values})
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return bool(loads(statement) & {*values})
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not loads(statement) & {*values}:
        return False
    if isinstance(call.func, ast.Attribute):
        return call.func.attr == "append" and isinstance(call.func.value, ast.Name)
    return isinstance(call.func, ast.Name) and call.func.id == "print"


def _hand_over(places: Mapping[str, str]) -> str:
    """The statement that gives modules the program's weights."""
    items = ", ".join(f"{name!r}: {expression}" for name, expression in places.items())
    return f"{HAND_OVER}({{{items}}})"
