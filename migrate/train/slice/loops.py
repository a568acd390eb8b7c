"""The loop that trains: which call of the script is in it, and as what the batch gets from it to the loss."""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from migrate.model.calls.rank_tests import last_part
from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.slice.statements import every_statement
from migrate.train.slice.text import (
    FunctionNode,
    ScriptText,
    blocks,
    first_line,
    loads,
    path_to,
    root,
    stores,
)

LOOPS = ast.For | ast.While | ast.AsyncFor


@dataclass(frozen=True)
class TrainingCalls:
    """Calls of the script that train: frames of each call, innermost first.

    Attributes:
        backward: frames of the backward.
        steps: frames of each distinct call of `optimizer.step`.
        dropped: frames of clipping, zeroing, loss scalers and schedules.
        before: frames of further backwards of the same update, which run before it.
        clips: lines that clip the gradients of this update.
        optimizer: its number among the optimizers that the script builds; -1 if there is no other update.
        others: lines of the backwards and steps of other updates.
        handed: functions that get a loss and call its backward, by name and first line. The frames are
            without them.
        when: line of a statement whose function steps the optimizer under a condition → the condition there.
    """

    backward: tuple[Frame, ...]
    steps: tuple[tuple[Frame, ...], ...]
    dropped: tuple[tuple[Frame, ...], ...]
    before: tuple[tuple[Frame, ...], ...] = ()
    clips: tuple[int, ...] = ()
    optimizer: int = -1
    others: tuple[int, ...] = ()
    handed: tuple[tuple[str, int], ...] = ()
    when: Mapping[int, str] = field(default_factory=dict)

    @property
    def backwards(self) -> list[int]:
        """Lines of the backwards of one update, in their order."""
        return [*(frames[0].line for frames in self.before), self.backward[0].line]


def loop_level(script: ScriptText, frames: Sequence[Frame]) -> int:
    """Index of the innermost frame whose call is in a loop.

    Raises:
        TrainError: no frame of the script has a loop around the backward.
    """
    for level, frame in enumerate(frames):
        if loops_around(script, frame):
            return level
    raise TrainError(
        f"{script.at(frames[0].line)}: no loop of the script runs this backward",
        "name the script with the training loop",
    )


def outermost_level(script: ScriptText, frames: Sequence[Frame]) -> int:
    """Index of the outermost frame whose call is in a loop: who calls it trains once."""
    levels = [level for level, frame in enumerate(frames) if loops_around(script, frame)]
    return max(levels, default=0)


def loops_around(script: ScriptText, frame: Frame) -> list[ast.stmt]:
    """Loops around the call of a frame, from the outermost on."""
    code = script.code(frame.first, frame.function)
    path = path_to(code, frame.line) if code is not None else []
    return [block[index] for block, index in path[:-1] if isinstance(block[index], LOOPS)]


def step_statements(
    script: ScriptText, frames: Sequence[Frame]
) -> Iterator[tuple[Frame, list[ast.stmt]]]:
    """Yield each frame of a training step with the statements around it: those of the outermost loop.

    Of a training step that is a function of its own they are those of the function.
    """
    for frame in frames:
        loops = loops_around(script, frame)
        if loops:
            yield frame, [statement for block in blocks(loops[0]) for statement in block]
        elif frame is frames[0]:
            yield frame, getattr(script.code(frame.first, frame.function), "body", [])


def loop_statements(script: ScriptText, frame: Frame) -> dict[int, frozenset[int]]:
    """Statements of the training function, up to the one with the loop.

    Returns:
        First line of each, and the first lines of all statements inside of it.
    """
    code = script.code(frame.first, frame.function)
    body, index = own_block(code, frame.line)
    return {
        first_line(statement): frozenset(map(first_line, every_statement(statement)))
        for statement in body[: index + 1]
    }


def batch_loop(script: ScriptText, frame: Frame) -> int:
    """First line of the innermost loop around the training step."""
    return first_line(loops_around(script, frame)[-1])


def own_block(code: ast.AST | None, line: int) -> tuple[list[ast.stmt], int]:
    """Top-level statements of a function, or of the block under `if __name__ == "__main__"`."""
    path = path_to(code, line) if code is not None else []
    (block, index), *rest = path
    statement = block[index]
    if isinstance(code, ast.Module) and isinstance(statement, ast.If) and rest:
        return rest[0] if "__name__" in ast.unparse(statement.test) else (block, index)
    return block, index


def batch_in_loop(
    script: ScriptText, frames: Sequence[Frame], level: int, values: Mapping[str, str]
) -> dict[str, str]:
    """Expression of each batch variable in the frame with the loop, of those in the innermost frame."""
    values = dict(values)
    for caller, called in zip(frames[1 : level + 1], frames[:level], strict=True):
        function = script.code(called.first, called.function)
        call = call_of(script, caller, called)
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


def call_of(script: ScriptText, caller: Frame, called: Frame) -> ast.Call:
    """The call in one frame that runs the next."""
    code = script.code(caller.first, caller.function)
    path = path_to(code, caller.line) if code is not None else []
    function = script.code(called.first, called.function)
    for block, index in path[-1:]:
        calls = [node for node in ast.walk(block[index]) if isinstance(node, ast.Call)]
        running = [call for call in calls if _runs(script, caller, call)]
        named = [call for call in (*running, *calls) if last_part(call.func) == called.function]
        # A bound method under another name does not say whose it is.
        other = [c for c in running if _object_of(function, c) or not _takes_self(function)]
        for call in (*named, *other):
            return call
    for block, index in path[-1:]:
        if started := _started(script, block[index], called):
            return started
    raise TrainError(
        f"{script.at(caller.line)}: {called.function} is not called by its name here",
        "call the training function by its name",
    )


def _runs(script: ScriptText, caller: Frame, call: ast.Call) -> bool:
    """Whether a frame is in this call, of an object of the script: not `map(step, batches)`."""
    if caller.end is None:
        return False
    if (call.end_lineno, call.end_col_offset) != (caller.line + caller.end[0], caller.end[1]):
        return False
    name = root(call.func)
    imported = (n for n in ast.walk(script.tree) if isinstance(n, ast.Import | ast.ImportFrom))
    names = {(alias.asname or alias.name).partition(".")[0] for n in imported for alias in n.names}
    return name not in names and not hasattr(builtins, name)


def _takes_self(function: ast.AST | None) -> bool:
    """Whether the first parameter of a function is `self`."""
    if not isinstance(function, FunctionNode):
        return False
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args)][:1] == ["self"]


def _object_of(function: ast.AST | None, call: ast.Call) -> ast.expr | None:
    """Expression that a call hands over as `self`: `run` in `run.train(x)` and in `run(x)` for `__call__`."""
    if not isinstance(function, FunctionNode) or not _takes_self(function):
        return None
    if isinstance(call.func, ast.Attribute) and call.func.attr == function.name:
        return call.func.value
    return call.func if function.name == "__call__" else None


def parameters_of(function: FunctionNode, call: ast.Call) -> list[str]:
    """Positional parameters that the arguments of a call are for: without a `self` that it hands over."""
    taken = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    return taken if _object_of(function, call) is None else taken[1:]


def _started(script: ScriptText, statement: ast.stmt, called: Frame) -> ast.Call | None:
    """The call of a function that a launcher starts, `mp.spawn(train, args=(size, options))`.

    Its arguments have the plain values that the function got; objects are those that the statement hands to
    the launcher as `args`. None if the statement does not name the function, or an argument is neither.
    """
    function = script.code(called.first, called.function)
    if not isinstance(function, FunctionNode):
        return None
    named = any(
        isinstance(node, ast.Name) and node.id == called.function for node in ast.walk(statement)
    )
    parameters = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    handed = _handed_to_launcher(statement, called.function)
    values = dict(zip(parameters[len(parameters) - len(handed) :], handed, strict=False))
    # A number of devices is that of the recorded run, on each machine.
    values |= {name: ast.Constant(value) for name, value in called.arguments}
    if not named or not set(parameters) <= set(values):
        return None
    arguments = [values[name] for name in parameters]
    call = ast.Call(ast.Name(called.function, ast.Load()), arguments, [])
    return ast.fix_missing_locations(ast.copy_location(call, statement))


def _handed_to_launcher(statement: ast.stmt, function: str) -> list[ast.expr]:
    """Expressions of `args=(…)` in a call that has a function as its argument."""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call):
            continue
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        handed = [k.value for k in node.keywords if k.arg == "args"] or node.args[1:2]
        if any(isinstance(a, ast.Name) and a.id == function for a in arguments):
            return [e for a in handed if isinstance(a, ast.Tuple | ast.List) for e in a.elts]
    return []


def handed_to(script: ScriptText, caller: Frame, called: Frame, parameter: str) -> str:
    """Source of the argument that a frame hands to the next one as a parameter; "" if it is not written."""
    function = script.code(called.first, called.function)
    assert isinstance(function, FunctionNode)
    return _bound(function, call_of(script, caller, called)).get(parameter, "")


def condition_of(script: ScriptText, caller: Frame, called: Frame) -> str:
    """Condition under which a called function runs its line, with the arguments of the call; "" for none.

    Raises:
        TrainError: it depends on more than the arguments.
    """
    function = script.code(called.first, called.function)
    assert isinstance(function, FunctionNode)
    path = path_to(function, called.line)
    tests = []
    for (block, index), (inner, _) in itertools.pairwise(path):
        if isinstance(statement := block[index], ast.If):
            is_body = inner is statement.body
            tests.append(statement.test if is_body else ast.UnaryOp(ast.Not(), statement.test))
    listed = [*function.args.posonlyargs, *function.args.args]
    defaults = zip(reversed(listed), reversed(function.args.defaults), strict=False)
    values = {argument.arg: ast.unparse(value) for argument, value in defaults}
    values |= _bound(function, call_of(script, caller, called))
    bound = {name for statement in function.body for name in stores(statement)[0]}
    texts = []
    for test in tests:
        unknown = loads(test) - (set(values) - bound)
        if unknown or any(isinstance(node, ast.Attribute | ast.Call) for node in ast.walk(test)):
            raise TrainError(
                f"{script.at(called.line)}: whether {called.function} does this depends on more than its "
                "arguments",
                "write the condition in the training loop, around the call",
            )
        texts.append(ast.unparse(_Substituted(values).visit(copy.deepcopy(test))))
    texts = [text for text in texts if text not in ("True", "not False")]
    return " and ".join(f"({text})" for text in texts) if len(texts) > 1 else "".join(texts)


class _Substituted(ast.NodeTransformer):
    """Names become expressions."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Write the expression."""
        return ast.parse(self._values[node.id], mode="eval").body


def _bound(function: FunctionNode, call: ast.Call) -> dict[str, str]:
    """Parameter → the argument's source."""
    owner = _object_of(function, call)
    bound = {} if owner is None else {"self": ast.unparse(owner)}
    for parameter, argument in zip(parameters_of(function, call), call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        bound[parameter] = ast.unparse(argument)
    return bound | {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}


def line_in(frames: Sequence[Frame], position: tuple[str, int]) -> int | None:
    """Line of a call in one function, given by its name and first line; None if no frame is in it."""
    for frame in frames:
        if (frame.function, frame.first) == position:
            return frame.line
    return None


def loop_ends(script: ScriptText, frame: Frame) -> list[list[str]]:
    """Tests around each `break` and `return` in the loop over batches, without those that it changes."""
    loop = loops_around(script, frame)[-1]
    changed = _changed_in(script, loop)
    result: list[list[str]] = []

    def look(block: Sequence[ast.stmt], tests: list[str], *, own: bool) -> None:
        for statement in block:
            if isinstance(statement, FunctionNode | ast.ClassDef):
                continue
            if isinstance(statement, ast.Return) or (own and isinstance(statement, ast.Break)):
                result.append(tests)
            test = getattr(statement, "test", None)
            fixed = isinstance(statement, ast.If) and not _reads(statement.test) & changed
            for inner in blocks(statement):
                around = tests
                if fixed and test is not None:
                    is_body = inner is statement.body  # type: ignore[attr-defined]
                    around = [
                        *tests,
                        ast.unparse(test) if is_body else f"not ({ast.unparse(test)})",
                    ]
                look(inner, around, own=own and not isinstance(statement, LOOPS))

    look(loop.body, [], own=True)  # type: ignore[attr-defined]
    return result


def _changed_in(script: ScriptText, loop: ast.stmt) -> set[str]:
    """Names that a loop binds or changes, hands to a call or calls methods of; names that functions bind.

    The empty name is in it: what a call returns may change.
    """
    changed = {"", *(n for s in every_statement(loop) for names in stores(s) for n in names)}
    for node in ast.walk(loop):
        if isinstance(node, ast.Call):
            handed = [*node.args, *(keyword.value for keyword in node.keywords)]
            held = [n.value if isinstance(n, ast.Starred) else n for n in handed]
            changed |= {n.id for n in held if isinstance(n, ast.Name)}
            changed |= {root(node.func)} if isinstance(node.func, ast.Attribute) else set()
    named = (node for node in ast.walk(script.tree) if isinstance(node, ast.Global | ast.Nonlocal))
    return changed.union(*(node.names for node in named))


def _reads(test: ast.expr) -> set[str]:
    """Names that a test reads; the empty name for a call."""
    return loads(test) | ({""} if any(isinstance(n, ast.Call) for n in ast.walk(test)) else set())
