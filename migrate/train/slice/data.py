"""The script's own loop without what trains: a generator of micro-batches.

Statements stay if a batch, or the loops and conditions around the training step, depend on them. Everything
else is left out. The generator yields the batch where the script computes its loss, and None where the
script updates the weights.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from migrate.model.calls.rank_tests import last_part
from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.slice.called import is_call_of
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import (
    FunctionNode,
    ScriptText,
    WrittenFor,
    WrittenIf,
    blocks,
    first_line,
    free_names,
    loads,
    path_to,
    root,
    stores,
)

MICRO, RESTORE, ENDED, ARGUMENTS = "micro_batches", "restore_draws", "Ended", "command_line"
HAND_OVER = "hand_over"
_SEEDS = ("manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything")
_GROUP = "torch.distributed.init_process_group"
_LOOPS = ast.For | ast.While | ast.AsyncFor
_LEAVES = ast.Break | ast.Continue
# Calls that end the script.
_EXITS = ("sys.exit", "exit", "quit", "os._exit")


@dataclass(frozen=True)
class TrainingCalls:
    """Calls of the script that train: frames of each call, innermost first.

    Attributes:
        backward: frames of the backward.
        steps: frames of each distinct call of `optimizer.step`.
        dropped: frames of clipping, zeroing and schedules.
    """

    backward: tuple[Frame, ...]
    steps: tuple[tuple[Frame, ...], ...]
    dropped: tuple[tuple[Frame, ...], ...]


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


class _ReadsTrainedError(Exception):
    """The loop reads what is trained, and `data.py` has it as it starts; `refusal` says where."""

    def __init__(self, refusal: TrainError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def loop_level(script: ScriptText, frames: Sequence[Frame]) -> int:
    """Index of the innermost frame whose call is in a loop.

    Raises:
        TrainError: no frame of the script has a loop around the backward.
    """
    for level, frame in enumerate(frames):
        if _loops_around(script, frame):
            return level
    raise TrainError(
        f"{script.at(frames[0].line)}: no loop of the script runs this backward",
        "name the script with the training loop",
    )


def outermost_level(script: ScriptText, frames: Sequence[Frame]) -> int:
    """Index of the outermost frame whose call is in a loop: who calls it trains once."""
    levels = [level for level, frame in enumerate(frames) if _loops_around(script, frame)]
    return max(levels, default=0)


def _loops_around(script: ScriptText, frame: Frame) -> list[ast.stmt]:
    """Loops around the call of a frame, from the outermost on."""
    code = script.code(frame.first, frame.function)
    path = path_to(code, frame.line) if code is not None else []
    return [block[index] for block, index in path[:-1] if isinstance(block[index], _LOOPS)]


def loop_statements(script: ScriptText, frame: Frame) -> dict[int, frozenset[int]]:
    """Statements of the training function, up to the one with the loop.

    Returns:
        First line of each, and the first lines of all statements inside of it.
    """
    code = script.code(frame.first, frame.function)
    body, index = _own_block(code, frame.line)
    return {
        first_line(statement): frozenset(map(first_line, _every(statement)))
        for statement in body[: index + 1]
    }


def batch_loop(script: ScriptText, frame: Frame) -> int:
    """First line of the innermost loop around the training step."""
    return first_line(_loops_around(script, frame)[-1])


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
            loop runs them, they get the program's weights after each update.

    Raises:
        TrainError: the loop depends on what a training step computes, or has a form that is not read.
    """
    level = loop_level(script, events.backward)
    values = {name: name for name in names}
    if level:  # the function that unpacks the batch is called in the loop
        values = {name: loss.unpacked.get(name, name) for name in names}
    values = _arguments(script, events.backward, level, values)
    parts = (script, events, loss, level, values, restore_before, trained or {})
    try:
        return _Slicer(*parts, None).slice()
    except _ReadsTrainedError as reads:
        if not places:
            raise reads.refusal from None
    return _Slicer(*parts, places).slice()


def _own_block(code: ast.AST | None, line: int) -> tuple[list[ast.stmt], int]:
    """Top-level statements of a function, or of the block under `if __name__ == "__main__"`."""
    path = path_to(code, line) if code is not None else []
    (block, index), *rest = path
    statement = block[index]
    if isinstance(code, ast.Module) and isinstance(statement, ast.If) and rest:
        return rest[0] if "__name__" in ast.unparse(statement.test) else (block, index)
    return block, index


def _arguments(
    script: ScriptText, frames: Sequence[Frame], level: int, values: Mapping[str, str]
) -> dict[str, str]:
    """Expression of each batch variable in the frame with the loop, of those in the innermost frame."""
    values = dict(values)
    for caller, called in zip(frames[1 : level + 1], frames[:level], strict=True):
        function = script.code(called.first, called.function)
        call = _call(script, caller, called)
        assert isinstance(function, FunctionNode)
        arguments = _bound(function, call)
        for name, expression in values.items():
            whole, bracket, item = expression.partition("[")
            if bracket and whole in arguments:
                values[name] = f"({arguments[whole]})[{item}"
                continue
            if expression not in arguments:
                raise TrainError(
                    f"{script.at(caller.line)}: the batch reaches {called.function} as {expression}, "
                    "which is no plain argument of this call",
                    "pass the batch as an argument of its own",
                )
            values[name] = arguments[expression]
    return values


def _call(script: ScriptText, caller: Frame, called: Frame) -> ast.Call:
    """The call in one frame that runs the next."""
    code = script.code(caller.first, caller.function)
    path = path_to(code, caller.line) if code is not None else []
    for block, index in path[-1:]:
        for node in ast.walk(block[index]):
            if isinstance(node, ast.Call) and last_part(node.func) == called.function:
                return node
    for block, index in path[-1:]:
        if started := _started(script, block[index], called):
            return started
    raise TrainError(
        f"{script.at(caller.line)}: {called.function} is not called by its name here",
        "call the training function by its name",
    )


def _started(script: ScriptText, statement: ast.stmt, called: Frame) -> ast.Call | None:
    """The call of a function that a launcher starts, `mp.spawn(train, args=(size,))`, with the values it got.

    None if the statement does not name the function, or an argument is no plain value.
    """
    function = script.code(called.first, called.function)
    if not isinstance(function, FunctionNode):
        return None
    named = any(
        isinstance(node, ast.Name) and node.id == called.function for node in ast.walk(statement)
    )
    values = dict(called.arguments)
    parameters = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    if not named or not set(parameters) <= set(values):
        return None
    arguments: list[ast.expr] = [ast.Constant(values[name]) for name in parameters]
    call = ast.Call(ast.Name(called.function, ast.Load()), arguments, [])
    return ast.fix_missing_locations(ast.copy_location(call, statement))


def _bound(function: FunctionNode, call: ast.Call) -> dict[str, str]:
    """Parameter → the argument's source."""
    parameters = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    bound: dict[str, str] = {}
    if isinstance(call.func, ast.Attribute) and parameters[:1] == ["self"]:
        bound["self"] = ast.unparse(call.func.value)
        parameters = parameters[1:]
    for parameter, argument in zip(parameters, call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        bound[parameter] = ast.unparse(argument)
    return bound | {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}


@dataclass
class _Scope:
    """Kept part of a function or of the module.

    Attributes:
        body: its statements.
        line: line of the call in it that trains.
        marks: statement → what stands in its place.
        dropped: statements that train.
        needed: names that kept statements read.
        inside: those that are read in the loops that train, or by functions, which may run there. What a
            statement in these loops binds matters to them alone.
        kept: kept statements.
        ends: kept statement that leaves the function or the script, or opens a process group → what stands in
            its place.
        trained: names of what is trained, of its optimizer and of its schedule.
    """

    body: list[ast.stmt]
    line: int = 0
    marks: dict[ast.stmt, str] = field(default_factory=dict)
    before: dict[ast.stmt, str] = field(default_factory=dict)
    dropped: set[ast.stmt] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    kept: set[ast.stmt] = field(default_factory=set)
    ends: dict[ast.stmt, str] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)

    def need(self, names: Collection[str], *, inside: bool = True) -> None:
        """Note names that are read, also in the loops or only before them."""
        self.needed |= set(names)
        if inside:
            self.inside |= set(names)


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
    ) -> None:
        self._places = places
        self._start: tuple[int, ast.stmt] | None = None
        self._script, self._events, self._loss = script, events, loss
        self._level, self._values = level, dict(values)
        self._restore = set(restore_before)
        self._trained = trained
        self._modules = {
            (alias.asname or alias.name).partition(".")[0]
            for node in script.tree.body
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        self._lines: set[int] = set()

    def slice(self) -> DataSlice:
        """Slice the loop's function, then its callers, then the module."""
        frames = self._events.backward
        self._start = self._first_loop() if self._places is not None else None
        sliced: dict[ast.AST, _Scope] = {}
        for level in range(self._level, len(frames)):
            frame = frames[level]
            code = self._script.code(frame.first, frame.function)
            assert code is not None
            if isinstance(code, ast.Module):
                continue
            scope = _Scope(code.body, frame.line, trained=self._trained_names(frame))
            self._mark(scope, code, level, sliced)
            self._settle(scope, {argument.arg for argument in _parameters(code)})
            self._require_untrained(scope)
            sliced[code] = scope
        module = self._module(sliced)
        rollouts = self._places is not None
        starts = self._start is not None
        return DataSlice(module, frames[self._level], frozenset(self._lines), rollouts, starts)

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
            for loop in _loops_around(self._script, frame):
                if not roots & set[str]().union(*(stores(s)[0] for s in _every(loop))):
                    return level, loop
        return None

    # ------------------------------------------------------------------ what stands where

    def _mark(
        self, scope: _Scope, code: ast.AST, level: int, sliced: Mapping[ast.AST, _Scope]
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
        scope.marks[at] = text
        position = (frame.function, frame.first)
        for step in self._events.steps:
            line = _line_in(step, position)
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
        looped = {s for loop in _loops_around(self._script, frame) for s in _every(loop)}
        for dropped in self._events.dropped:
            line = _line_in(dropped, position)
            if line is not None:
                own = (dropped[0].function, dropped[0].first) == position
                if not own and self._whole(code, line) not in looped:
                    continue  # a function that trains something else, before the loop
                statement = self._statement(code, line)
                if statement not in scope.marks:
                    scope.dropped.add(statement)

    def _handed_over(self, scope: _Scope, position: tuple[str, int], line: int) -> str:
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
        self, caller: Frame, called: Frame, sliced: Mapping[ast.AST, _Scope], scope: _Scope
    ) -> str:
        """`yield from` the sliced function; arguments that it no longer reads become None."""
        function = self._script.code(called.first, called.function)
        assert isinstance(function, FunctionNode)
        call = _call(self._script, caller, called)
        needed = sliced[function].needed
        parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if isinstance(call.func, ast.Attribute) and parameters[:1] == ["self"]:
            parameters = parameters[1:]
        nothing = ast.Constant(None)
        args = [
            argument if isinstance(argument, ast.Starred) or name in needed else nothing
            for name, argument in zip(parameters, call.args, strict=False)
        ]
        args += call.args[len(args) :]
        keywords = [
            ast.keyword(k.arg, k.value if k.arg is None or k.arg in needed else nothing)
            for k in call.keywords
        ]
        shorter = ast.Call(call.func, args, keywords)
        scope.need(loads(shorter))
        return f"yield from {ast.unparse(ast.fix_missing_locations(shorter))}"

    # ------------------------------------------------------------------ what is kept

    def _settle(self, scope: _Scope, bound: Iterable[str] = ()) -> None:
        """Keep statements until no kept one reads a name that another one binds."""
        while True:
            before = len(scope.kept), len(scope.needed), len(scope.inside)
            for statement in scope.body:
                self._visit(scope, statement)
            if before == (len(scope.kept), len(scope.needed), len(scope.inside)):
                break
        self._require_independent(scope, bound)

    def _require_independent(self, scope: _Scope, bound: Iterable[str] = ()) -> None:
        """Report batches and loops that depend on what the training step computes."""
        kept = {
            name
            for statement in scope.kept
            if statement not in scope.marks
            for name in (_targets(statement) if any(blocks(statement)) else stores(statement)[0])
        }
        for statement in (*scope.dropped, *scope.marks):
            lost = stores(statement)[0] & scope.needed - kept - set(bound)
            if lost:
                raise TrainError(
                    f"{self._script.at(first_line(statement))}: the batches depend on {min(lost)}, "
                    "which the training step computes",
                    "let the data and the end of the loop depend on counters alone",
                )

    def _trained_names(self, frame: Frame) -> set[str]:
        """Names of what is trained in a frame and in the module."""
        if self._places is not None:
            return set()
        positions = ((frame.function, frame.first), ("<module>", 1))
        return {n for where, names in self._trained.items() if where in positions for n in names}

    def _require_untrained(self, scope: _Scope) -> None:
        """Report loops and conditions around the training step that read what it trains.

        `data.py` has the model as it starts.
        """
        loops = [
            node
            for statement in scope.body
            for node in _every(statement)
            if isinstance(node, _LOOPS) and self._trains(scope, node)
        ]
        kept = [
            statement
            for statement in dict.fromkeys(inner for loop in loops for inner in _every(loop))
            if statement in scope.kept
            and statement not in scope.marks
            and statement not in scope.ends
            and not isinstance(statement, FunctionNode | ast.ClassDef)
        ]
        reads = {statement: _read(statement) for statement in kept}
        decides = set[str]().union(*(r for s, r in reads.items() if not isinstance(s, ast.Expr)))
        for statement in kept:
            read = reads[statement]
            if isinstance(statement, ast.Expr):  # self.evaluate(), which sets what ends the loop
                called = self._called(statement)
                sets = {ast.unparse(node) for code in called for node in _set_attributes(code)}
                read = set[str]().union(*map(_read, called)) if sets & decides else set()
            if read & scope.trained:
                refusal = TrainError(
                    f"{self._script.at(first_line(statement))}: the loop depends on "
                    f"{min(read & scope.trained)}, which is trained",
                    "let the data and the end of the loop depend on counters alone",
                )
                raise _ReadsTrainedError(refusal)

    def _called(self, statement: ast.stmt) -> list[ast.stmt]:
        """Functions of the script that a statement may call, and those that they may call."""
        functions: dict[str, list[ast.stmt]] = {}
        for node in ast.walk(self._script.tree):
            if isinstance(node, FunctionNode):
                functions.setdefault(node.name, []).append(node)
        called: list[ast.stmt] = []
        pending = [statement]
        while pending:
            for node in ast.walk(pending.pop()):
                more = functions.pop(last_part(node), []) if isinstance(node, ast.expr) else []
                called += more
                pending += more
        return called

    def _visit(self, scope: _Scope, statement: ast.stmt, around: tuple[ast.stmt, ...] = ()) -> bool:
        """Keep a statement if it is needed, with what is needed inside of it; return whether it is kept.

        Args:
            scope: the part that is kept so far.
            statement: the statement.
            around: statements that it is in, from the outermost loop that trains on.
        """
        if statement in scope.dropped:
            return False
        if statement in scope.marks:
            scope.kept.add(statement)
            return True
        inner = [child for block in blocks(statement) for child in block]
        if inner and not isinstance(statement, FunctionNode | ast.ClassDef):
            trains = self._trains(scope, statement)
            inside = around or (trains and isinstance(statement, _LOOPS))
            within = (*around, statement) if inside else ()
            kept = [self._visit(scope, child, within) for child in inner]
            # Another loop, over an evaluation set say, may use the names of the training loop.
            own = _targets(statement) & scope.needed - self._loop_names(scope)
            if any(kept) or (own and not trains):
                # Branches that make the model, say, are not those that read the data.
                parts = trains or around or isinstance(statement, ast.If)
                self._keep(scope, statement, whole=not parts, inside=bool(within))
                return True
            return False
        if around and self._leaves(scope, statement, around):
            if isinstance(statement, ast.Raise) and statement not in scope.ends:
                self._keep(scope, statement, whole=True)
            scope.kept.add(statement)
            return True
        if group := _own_group(self._script.tree, statement):
            scope.ends[statement] = group
            scope.kept.add(statement)
            scope.need(loads(statement.value.func))  # type: ignore[attr-defined]
            return True
        binds, changes = stores(statement)
        if around:  # model.require_backward_grad_sync = … is no part of the data
            changes -= scope.trained
        read = scope.inside if around else scope.needed
        if (binds | changes) & read or self._is_call(scope, statement):
            self._keep(scope, statement, whole=True, inside=bool(around))
            return True
        return False

    def _leaves(self, scope: _Scope, statement: ast.stmt, around: tuple[ast.stmt, ...]) -> bool:
        """Whether a statement ends a loop that trains, or a kept block inside of it."""
        if isinstance(statement, _LEAVES):
            loop = next(s for s in reversed(around) if isinstance(s, _LOOPS))
            # An evaluation may end its own loop as it likes.
            return loop in scope.kept or self._trains(scope, loop)
        if isinstance(statement, ast.Return):
            scope.ends[statement] = "return"
            return True
        if _is_exit(statement):
            scope.ends[statement] = f"raise {ENDED}"
            return True
        if isinstance(statement, ast.Raise) and statement.exc is None:
            # It goes on with what was raised in the block.
            return any(isinstance(s, ast.Try) and s in scope.kept for s in around)
        return isinstance(statement, ast.Raise)

    def _keep(
        self, scope: _Scope, statement: ast.stmt, *, whole: bool, inside: bool = True
    ) -> None:
        """Keep a statement; names that it reads are needed, in the loops that train or before them."""
        scope.kept.add(statement)
        read = set[str]()
        if whole:
            nodes = list(ast.walk(statement))
            scope.kept |= {node for node in nodes if isinstance(node, ast.stmt)}
            read |= loads(statement)
            read |= {
                root(n)
                for n in nodes
                if isinstance(n, ast.Attribute | ast.Subscript) and isinstance(n.ctx, ast.Store)
            } - {""}
        else:
            for name in ("test", "iter", "items", "subject"):
                part = getattr(statement, name, None)
                for node in part if isinstance(part, list) else [part] if part is not None else []:
                    read |= loads(node)
        scope.need(read, inside=inside or first_line(statement) > scope.line)

    def _trains(self, scope: _Scope, statement: ast.stmt) -> bool:
        return any(
            node in scope.marks or node in scope.dropped
            for node in ast.walk(statement)
            if isinstance(node, ast.stmt)
        )

    def _loop_names(self, scope: _Scope) -> set[str]:
        """Names that the loops around the training step bind."""
        return set[str]().union(
            *(
                _targets(node)
                for statement in scope.body
                for node in _every(statement)
                if isinstance(node, _LOOPS) and self._trains(scope, node)
            )
        )

    def _is_call(self, scope: _Scope, statement: ast.stmt) -> bool:
        """Whether a statement is a call that may change a value that is kept, or a seed."""
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return False
        function = statement.value.func
        if last_part(function) in _SEEDS:
            return True
        receiver = root(function) if isinstance(function, ast.Attribute) else ""
        return receiver in scope.needed - self._modules

    # ------------------------------------------------------------------ source

    def _module(self, sliced: Mapping[ast.AST, _Scope]) -> str:
        """The kept parts of the module, and the generator."""
        tree, frames = self._script.tree, self._events.backward
        outer = frames[-1]
        body, index = _own_block(tree, outer.line)
        main = body[index]
        inside = body is not tree.body
        top = [s for s in tree.body if not (inside and any(c is main for c in ast.walk(s)))]
        whole = [*top, *body[: index + 1]] if inside else tree.body[: index + 1]
        scope = _Scope(whole, outer.line, trained=self._trained_names(outer))
        if not inside:
            scope.body = [*tree.body[: index + 1]]
        level = len(frames) - 1
        self._mark(scope, tree, level, sliced)
        chain = set(sliced)
        of_functions = set[str]()
        for code, inner in sliced.items():
            bound = {a.arg for a in _parameters(code)} | {  # type: ignore[arg-type]
                name for s in inner.kept for name in stores(s)[0]
            }
            of_functions |= inner.needed - bound
            scope.need(_defaults(code))  # type: ignore[arg-type]
        scope.need(of_functions)
        later = [s for s in tree.body if isinstance(s, FunctionNode | ast.ClassDef)]
        scope.body = [*scope.body, *(s for s in later if s not in scope.body)]
        self._settle_module(scope, chain, sliced)
        self._require_untrained(scope)
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
        early = _before_definitions(ordered) | set(_settings(tree, ordered))
        parts, own = [], []
        for statement in ordered:
            stays = isinstance(statement, FunctionNode | ast.ClassDef | ast.Import | ast.ImportFrom)
            # The generators are restored after the seeds, so inside of the function.
            is_setting = _is_literal(statement) and first_line(statement) not in self._restore
            if stays or statement in early or is_setting:
                parts.append(self._emit(scope, statement, "", chain, sliced))
            else:
                own.append(statement)
        stored = {
            n for s in (*own, main) for d in _every(s) if d in scope.kept for n in stores(d)[0]
        }
        of_module = {n for s in ordered if s not in own for n in stores(s)[0]}
        shared = sorted(stored & (read | of_module))
        lines = [f"    global {', '.join(shared)}"] if shared else []
        for statement in (*own, main):
            lines.append(self._emit(scope, statement, "    ", chain, sliced))
        head = f'def {MICRO}():\n    """Yield each micro-batch, and None where the weights are updated."""'
        return "\n\n".join([*parts, "\n".join([head, *lines])]) + "\n"

    def _settle_module(
        self, scope: _Scope, chain: set[ast.AST], sliced: Mapping[ast.AST, _Scope]
    ) -> None:
        """Keep what the module's part needs, with the functions and classes that it names."""
        for statement in scope.body:
            if any(code in chain for code in ast.walk(statement)) and isinstance(
                statement, FunctionNode | ast.ClassDef
            ):
                scope.kept.add(statement)
        for statement in _settings(self._script.tree, scope.body):
            self._keep(scope, statement, whole=True)
            if _is_exec(self._script.tree, statement):
                text = textwrap.indent(ast.unparse(statement), "    ")
                scope.ends[statement] = f"with {ARGUMENTS}():\n{text}"
        while True:
            before = len(scope.kept), len(scope.needed), len(scope.inside)
            for statement in scope.body:
                if isinstance(statement, FunctionNode | ast.ClassDef):
                    if statement.name in scope.needed or statement in scope.kept:
                        scope.kept.add(statement)
                        if statement not in chain:
                            scope.need(self._names_of(statement, chain, sliced))
                else:
                    self._visit(scope, statement)
            if before == (len(scope.kept), len(scope.needed), len(scope.inside)):
                break
        self._require_independent(scope)

    def _names_of(
        self,
        statement: ast.stmt,
        chain: set[ast.AST],
        sliced: Mapping[ast.AST, _Scope],
    ) -> set[str]:
        if not isinstance(statement, ast.ClassDef) or not any(c in chain for c in statement.body):
            return free_names(statement)
        names = {n for d in (*statement.bases, *statement.decorator_list) for n in loads(d)}
        for member in self._members(statement, chain, sliced):
            if member not in chain:
                names |= free_names(member)
        return names

    def _members(
        self,
        statement: ast.ClassDef,
        chain: set[ast.AST],
        sliced: Mapping[ast.AST, _Scope],
    ) -> list[ast.stmt]:
        """Members of a trainer that its sliced methods use."""
        members = [
            m
            for m in statement.body
            if m in chain or not isinstance(m, FunctionNode) or m.name.startswith("__")
        ]
        while True:
            used: set[str] = set()
            for member in members:
                nodes: Iterable[ast.AST] = ast.walk(member)
                if member in chain:
                    marks = {**sliced[member].marks, **sliced[member].ends}
                    nodes = [
                        inner
                        for node in sliced[member].kept
                        for inner in _shallow(ast.parse(marks[node]) if node in marks else node)
                    ]
                used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            more = [
                m
                for m in statement.body
                if isinstance(m, FunctionNode) and m.name in used and m not in members
            ]
            if not more:
                return [m for m in statement.body if m in members]
            members += more

    def _emit(
        self,
        scope: _Scope,
        statement: ast.stmt,
        indent: str,
        chain: set[ast.AST],
        sliced: Mapping[ast.AST, _Scope],
    ) -> str:
        """Text of a kept statement, without the parts of it that are not kept."""
        text = self._own_text(scope, statement, indent, chain, sliced)
        if statement in scope.before:
            text = f"{indent}{scope.before[statement]}\n{text}"
        if first_line(statement) not in self._restore or isinstance(
            statement, FunctionNode | ast.ClassDef
        ):
            return text
        return f"{indent}{RESTORE}()\n{text}"

    def _own_text(
        self,
        scope: _Scope,
        statement: ast.stmt,
        indent: str,
        chain: set[ast.AST],
        sliced: Mapping[ast.AST, _Scope],
    ) -> str:
        if statement in scope.marks:
            self._lines.add(first_line(statement))
            return textwrap.indent(scope.marks[statement], indent)
        if statement in scope.ends:
            self._lines |= set(range(first_line(statement), (statement.end_lineno or 0) + 1))
            return f"{indent}{scope.ends[statement]}"
        if statement in chain:
            assert isinstance(statement, FunctionNode)
            inner = sliced[statement]
            lines = [textwrap.indent(self._head(statement), indent)]
            for child in statement.body:
                if child in inner.kept or child in inner.marks:
                    lines.append(self._emit(inner, child, indent + "    ", chain, sliced))
            return "\n".join(lines)
        if isinstance(statement, ast.ClassDef) and any(c in chain for c in statement.body):
            members = self._members(statement, chain, sliced)
            lines = [textwrap.indent(self._head(statement), indent)]
            for member in members:
                lines.append(self._emit(scope, member, indent + "    ", chain, sliced))
            return "\n\n".join(lines)
        inner_statements = [n for n in _every(statement) if n is not statement]
        if not inner_statements or isinstance(statement, FunctionNode | ast.ClassDef):
            return self._verbatim(statement, indent)
        replaced = {*scope.marks, *(s for s in scope.ends if ast.unparse(s) != scope.ends[s])}
        if all(n in scope.kept and n not in replaced for n in inner_statements):
            return self._verbatim(statement, indent)
        return self._partial(scope, statement, indent, chain, sliced)

    def _verbatim(self, statement: ast.stmt, indent: str) -> str:
        self._lines |= set(range(first_line(statement), (statement.end_lineno or 0) + 1))
        if isinstance(statement, ast.Return):
            return f"{indent}return"
        return textwrap.indent(_as_if(self._script.text(statement)), indent)

    def _head(self, statement: ast.stmt) -> str:
        if isinstance(statement, WrittenFor | WrittenIf):
            self._lines |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
            return statement.head
        body = statement.body  # type: ignore[attr-defined]
        first, last = first_line(statement), first_line(body[0]) - 1
        while last > first and not self._script.lines[last - 1].rstrip().endswith(":"):
            last -= 1  # comments above the first statement
        self._lines |= set(range(first, last + 1))
        lines = self._script.lines[first - 1 : max(last, first)]
        if body[0].lineno == first:  # `if a: b`
            lines = [lines[0].encode()[: body[0].col_offset].decode().rstrip()]
        return _as_if(textwrap.dedent("\n".join(lines)))

    def _partial(
        self,
        scope: _Scope,
        statement: ast.stmt,
        indent: str,
        chain: set[ast.AST],
        sliced: Mapping[ast.AST, _Scope],
    ) -> str:
        if isinstance(statement, ast.Try | ast.Match):
            what = "a training step"
            if not self._trains(scope, statement):
                what = "leaving the training loop"
            raise TrainError(
                f"{self._script.at(statement.lineno)}: {what} inside of this statement is not read",
                "move it out of the statement",
            )
        lines = [textwrap.indent(self._head(statement), indent)]

        def block(statements: list[ast.stmt]) -> None:
            kept = [s for s in statements if s in scope.kept]
            lines.extend(self._emit(scope, s, indent + "    ", chain, sliced) for s in kept)
            if not kept:
                lines.append(f"{indent}    pass")

        block(statement.body)  # type: ignore[attr-defined]
        orelse = getattr(statement, "orelse", [])
        if any(s in scope.kept for s in orelse):
            lines.append(f"{indent}else:")
            block(orelse)
        return "\n".join(lines)


def _read(statement: ast.stmt) -> set[str]:
    """Names and attributes, as text, that a statement reads; only the head of a block."""
    heads: list[ast.AST] = [statement]
    if any(blocks(statement)) and not isinstance(statement, FunctionNode):
        parts = (getattr(statement, name, None) for name in ("test", "iter"))
        heads = [part for part in parts if part is not None]
    return {
        ast.unparse(node)
        for head in heads
        for node in ast.walk(head)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def _set_attributes(code: ast.AST) -> list[ast.Attribute]:
    return [
        node
        for node in ast.walk(code)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]


def _as_if(text: str) -> str:
    """The text of an `elif` as a statement of its own."""
    return text.removeprefix("el") if text.startswith("elif ") else text


def _every(statement: ast.stmt) -> list[ast.stmt]:
    return [node for node in ast.walk(statement) if isinstance(node, ast.stmt)]


def _targets(statement: ast.stmt) -> set[str]:
    if not isinstance(statement, ast.For | ast.AsyncFor):
        return set()
    return {node.id for node in ast.walk(statement.target) if isinstance(node, ast.Name)}


def _shallow(node: ast.AST) -> Iterable[ast.AST]:
    """Nodes of a statement's own line: not of the statements inside of it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt) or isinstance(node, FunctionNode | ast.Module):
            yield from _shallow(child)


def _parameters(function: FunctionNode) -> list[ast.arg]:
    return [node for node in ast.walk(function.args) if isinstance(node, ast.arg)]


def _defaults(function: FunctionNode) -> set[str]:
    every = [*function.args.defaults, *filter(None, function.args.kw_defaults)]
    return set[str]().union(*map(loads, every), *map(loads, function.decorator_list))


def _settings(tree: ast.Module, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Assignments before the last `exec(…)`, which may read and set each of them, and these calls."""
    calls = {statement for statement in statements if _is_exec(tree, statement)}
    last = max((at for at, statement in enumerate(statements) if statement in calls), default=-1)
    return [s for s in statements[: last + 1] if isinstance(s, ast.Assign) or s in calls]


def _is_exec(tree: ast.Module, statement: ast.stmt) -> bool:
    """Whether a statement is `exec(text)`, which sees the names of the module."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(value, ast.Call)
        and len(value.args) == 1
        and is_call_of(tree, value.func, "builtins.exec")
    )


def _before_definitions(statements: Sequence[ast.stmt]) -> set[ast.stmt]:
    """Statements of a module whose values its definitions read when they are run: defaults and bases."""
    needed: set[str] = set()
    for statement in statements:
        if isinstance(statement, FunctionNode):
            needed |= _defaults(statement)
        elif isinstance(statement, ast.ClassDef):
            needed |= set[str]().union(
                *map(loads, (*statement.bases, *statement.keywords, *statement.decorator_list))
            )
            for member in statement.body:
                needed |= _defaults(member) if isinstance(member, FunctionNode) else loads(member)
    early: set[ast.stmt] = set()
    for statement in reversed(statements):
        defines = isinstance(statement, FunctionNode | ast.ClassDef | ast.Import | ast.ImportFrom)
        if not defines and stores(statement)[0] & needed:
            early.add(statement)
            needed |= loads(statement)
    return early


def _is_literal(statement: ast.stmt) -> bool:
    """Whether a statement assigns literals: a setting of the script."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    if stores(statement)[1]:  # happy[8:] = 1.0 changes what a call may have made
        return False
    return not any(
        isinstance(node, ast.Call | ast.Name | ast.Attribute) for node in ast.walk(statement.value)
    )


def _own_group(tree: ast.Module, statement: ast.stmt) -> str:
    """Text that opens a process group of one rank, for a statement that opens one; "" for others."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return ""
    function = statement.value.func
    if not is_call_of(tree, function, _GROUP):
        return ""
    return f'{ast.unparse(function)}("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)'


def _is_exit(statement: ast.stmt) -> bool:
    """Whether a statement ends the script: `sys.exit(1)`, `raise SystemExit`."""
    if isinstance(statement, ast.Raise) and statement.exc is not None:
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "SystemExit"
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return ast.unparse(statement.value.func) in _EXITS


def _line_in(frames: Sequence[Frame], position: tuple[str, int]) -> int | None:
    for frame in frames:
        if (frame.function, frame.first) == position:
            return frame.line
    return None
