"""The function or method of a script that gives the learning rate: `group["lr"] = get_lr(it)`.

It may also set the rates itself: `adjust(optimizer, epoch)`, with `group["lr"] = lr` in its own body. So may
statements of the loop.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from migrate.model.calls.option_defaults import COMPARED
from migrate.train.frames import Frame
from migrate.train.slice.loops import LOOPS, loops_around
from migrate.train.slice.statements import every_statement
from migrate.train.slice.text import (
    FunctionNode,
    ScriptText,
    blocks,
    first_line,
    outside,
    path_to,
    stores,
)

# Function of the written program with statements of the loop that set rates.
RATE = "rate_of"


def rate_function(script: ScriptText, frames: Sequence[Frame]) -> tuple[str, str] | None:
    """Return the function's dotted name and the name that it is called with, if the loop sets rates so.

    Args:
        script: the script.
        frames: frames of its backward.
    """
    for frame in frames:
        code = script.code(frame.first, frame.function)
        if code is None:
            continue
        for node in ast.walk(code):
            if isinstance(node, ast.Assign) and is_rate(node.targets[0]):
                call = _call(code, node.value)
                if call is not None:
                    return call
    return None


def is_rate(target: ast.expr) -> bool:
    """Whether an assignment to `target` sets a learning rate: `group["lr"] = …`."""
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == "lr"
    )


def _call(code: ast.AST, value: ast.expr) -> tuple[str, str] | None:
    """The call of a function with one name, in the value or in what the value's name is bound to."""
    values = [value]
    if isinstance(value, ast.Name):
        values = [
            node.value
            for node in ast.walk(code)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == value.id
        ]
    for candidate in values:
        for node in ast.walk(candidate):
            if (
                isinstance(node, ast.Call)
                and all(part.isidentifier() for part in ast.unparse(node.func).split("."))
                and len(node.args) == 1
                and isinstance(node.args[0], ast.Name)
                and not node.keywords
            ):
                return ast.unparse(node.func), node.args[0].id
    return None


def rate_setters(script: ScriptText, frames: Sequence[Frame]) -> list[tuple[str, int, int, bool]]:
    """Return what sets rates: name of its code, first line, a line, and whether it is in the loop.

    The line is the first statement of a function that is no part of the loop, and the statement with the
    rates of one that is.

    Args:
        script: the script.
        frames: frames of its backward.
    """
    inside = {(frame.function, frame.first) for frame in frames}
    result = [
        (node.name, first_line(node), first_line(_begin(node)), False)
        for node in ast.walk(script.tree)
        if isinstance(node, ast.FunctionDef)
        and (node.name, first_line(node)) not in inside
        and sets_rates(node)
    ]
    for frame in frames:
        code = script.code(frame.first, frame.function)
        for loop in loops_around(script, frame)[:1] if code is not None else []:
            bound = {name for s in every_statement(loop) for name in stores(s)[0]}
            lines = [line for block in blocks(loop) for line in _setting(block, bound)]
            result += [(frame.function, frame.first, line, True) for line in lines]
    return result


def _setting(block: Sequence[ast.stmt], bound: Collection[str]) -> list[int]:
    """Lines of the statements that set rates, each around all groups: not the loop over epochs.

    Args:
        block: statements of the loop.
        bound: names that the loop binds.
    """
    result = []
    for statement in block:
        if (
            isinstance(statement, ast.While | ast.With | ast.Try)
            or (isinstance(statement, ast.For) and _groups_of(statement) is None)
            or (isinstance(statement, ast.If) and _is_fixed(statement.test, bound))
        ):
            result += _setting([s for part in blocks(statement) for s in part], bound)
        elif any(_sets(node) for node in _own(statement)):
            result.append(first_line(statement))
    return result


def _is_fixed(test: ast.expr, bound: Collection[str]) -> bool:
    """Whether a test asks for options of the script, or for the first micro-batch of an update."""
    match test:
        case ast.BoolOp(_, values):
            return all(_is_fixed(value, bound) for value in values)
        case ast.UnaryOp(ast.Not(), operand):
            return _is_fixed(operand, bound)
        case ast.Compare(ast.BinOp(_, ast.Mod(), _), [ast.Eq()], [ast.Constant(0)]):
            return True
        case ast.Compare(left, [ast.Is() | ast.IsNot()], [ast.Constant(None)]):
            return _is_fixed(left, bound)
        case ast.Name(name):
            return name not in bound
        case ast.Attribute(value, _):
            return _is_fixed(value, bound)
    return False


def sets_rates(function: ast.FunctionDef) -> bool:
    """Whether a function sets learning rates."""
    return any(_sets(node) for statement in function.body for node in _own(statement))


def rate_statements(
    script: ScriptText, name: str, first: int, line: int, counters: Collection[str]
) -> ast.FunctionDef | None:
    """Return a statement of the loop that sets rates, after those that compute what it reads, as a function.

    Args:
        script: the script.
        name: name of the code.
        first: its first line.
        line: line of the statement.
        counters: names that count; what computes them is not needed.
    """
    code = script.code(first, name)
    path = path_to(code, line) if code is not None else []
    level = next((i for i, (b, at) in enumerate(path) if first_line(b[at]) == line), -1)
    start = next((i for i, (b, at) in enumerate(path) if isinstance(b[at], LOOPS)), level)
    if level <= start:
        return None
    block, index = path[level]
    taken = [block[index]]
    for block, index in reversed(path[start + 1 : level + 1]):
        anew = set[str]().union(*(stores(statement)[0] for statement in block))
        for statement in reversed(block[:index]):
            needed = outside(taken)[0] - set(counters)
            binds, changes = stores(statement)
            # `lr *= 0.1` after `lr = base` is a part of it, `step += 1` counts.
            again = changes & anew if isinstance(statement, ast.AugAssign) else set()
            if (binds | again) & needed:
                taken.insert(0, statement)
    function = ast.FunctionDef(
        RATE, ast.arguments([], [], None, [], [], None, []), taken, [], lineno=line, col_offset=0
    )
    return ast.fix_missing_locations(function)


def _begin(function: ast.FunctionDef) -> ast.stmt:
    """First statement of a function that computes."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    computes = (s for s in body if not isinstance(s, ast.Import | ast.ImportFrom))
    return next(computes, function.body[0])


def callees(script: ScriptText, frames: Sequence[Frame]) -> list[tuple[str, int, int, str]]:
    """Return statements of the loop that call a function by its name: code, its first line, line, name.

    One of another file may set the rates: `lr_sched.adjust_learning_rate(optimizer, epoch)`.
    """
    own = {node.name for node in ast.walk(script.tree) if isinstance(node, FunctionNode)}
    result = []
    for frame in frames:
        code = script.code(frame.first, frame.function)
        for node in [] if code is None else [n for s in code.body for n in _own(s)]:
            if not isinstance(node, ast.Expr | ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            name = ast.unparse(node.value.func)
            if all(part.isidentifier() for part in name.split(".")) and name not in own:
                result.append((frame.function, frame.first, first_line(node), name))
    return result


def as_rate(setter: ast.FunctionDef, argument: str) -> ast.FunctionDef | None:
    """Return a function that sets the rates as one that returns them; None if that has no such form.

    What a group multiplies its rate by, as in `group["lr"] = lr * group["lr_scale"]`, is left out.

    Args:
        setter: the function.
        argument: the parameter that the result has.
    """
    for index, statement in enumerate(setter.body):
        if any(isinstance(node, ast.Return) for node in _own(statement)):
            return None
        assigned = [node for node in _own(statement) if _sets(node)]
        if not assigned:
            continue
        more = [node for later in setter.body[index + 1 :] for node in _own(later) if _sets(node)]
        if more or not all(isinstance(node, ast.Assign) for node in assigned):
            return None
        loops = [node for node in _own(statement) if isinstance(node, ast.For)]
        looped = [_groups_of(loop) for loop in loops]
        if not isinstance(statement, ast.For) or any(
            over and over[2] != slice(None) for over in looped
        ):
            return None  # under a condition, or of some groups alone
        of_group = {
            name.id
            for node in _own(statement)
            if isinstance(node, ast.For)
            for name in ast.walk(node.target)
            if isinstance(name, ast.Name)
        }
        tests = [node.test for node in _own(statement) if isinstance(node, ast.If)]
        if any(
            {n.id for n in ast.walk(test) if isinstance(n, ast.Name)} - of_group for test in tests
        ):
            return None
        rates = [
            _without(node.value, of_group) for node in assigned if isinstance(node, ast.Assign)
        ]
        different = {rate and ast.unparse(rate) for rate in rates}
        if len(different) > 1 or rates[0] is None:
            return None
        return _returning(setter, argument, [*setter.body[:index], ast.Return(rates[0])])
    return None


def as_rates(
    setter: ast.FunctionDef, argument: str, groups: Sequence[Mapping[str, Any]]
) -> list[ast.FunctionDef] | None:
    """Return a function that sets the rates as one for each group that returns its rate.

    None if one of them has no such form.

    Args:
        setter: the function.
        argument: the parameter that the results have.
        groups: options of each group.
    """
    if any(isinstance(node, ast.Return) for s in setter.body[:-1] for node in _own(s)):
        return None
    result = []
    for number, options in enumerate(groups):
        body = _of_group(setter.body, number, len(groups), options)
        if body is None:
            return None
        if not body or not isinstance(body[-1], ast.Return):
            body = [ast.Return(ast.Constant(options["lr"]))]  # only other groups are set
        result.append(_returning(setter, argument, body))
    return result


def _returning(setter: ast.FunctionDef, argument: str, body: Sequence[ast.stmt]) -> ast.FunctionDef:
    """A function with the name of a setter and one parameter."""
    result = ast.FunctionDef(
        setter.name,
        ast.arguments([], [ast.arg(argument)], None, [], [], None, []),
        [copy.deepcopy(statement) for statement in body],
        [],
        lineno=setter.lineno,
        col_offset=0,
    )
    return ast.fix_missing_locations(result)


def _of_group(
    block: Sequence[ast.stmt], number: int, count: int, options: Mapping[str, Any]
) -> list[ast.stmt] | None:
    """Statements up to the last one that sets the rate of a group, which returns it instead.

    None if they set it in another form, or under a condition that is no option of the group.
    """
    result: list[ast.stmt] = []
    last = 0
    for statement in block:
        if not any(_sets(node) for node in _own(statement)):
            result.append(statement)
            continue
        if isinstance(statement, ast.For):
            over = _groups_of(statement)
            if over is None or statement.orelse:
                return None
            name, position, where = over
            if number not in range(count)[where]:
                continue
            body = copy.deepcopy(statement.body)
            at = range(count)[where].index(number)
            inner: list[ast.stmt] | None = _Options(name, options, position, at).block(body)
            inner = inner and _of_group(inner, number, count, options)
            if inner is None:
                return None
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            assert isinstance(target, ast.Subscript)
            if isinstance(target.value, ast.Subscript):  # optimizer.param_groups[0]["lr"]
                which = _index(target.value)
                if which is None or not -count <= which < count:
                    return None
                if which % count != number:
                    continue
            inner = [ast.Return(statement.value)]
        else:
            return None
        if inner and isinstance(inner[-1], ast.Return):
            result = [*(s for s in result if not isinstance(s, ast.Return)), *inner]
            last = len(result)
    return result[:last]


def _groups_of(loop: ast.For) -> tuple[str, str, slice] | None:
    """Name of a group and of its number in a loop over groups, and which groups these are."""
    position, target, over = "", loop.target, loop.iter
    if isinstance(over, ast.Call) and ast.unparse(over.func) == "enumerate" and len(over.args) == 1:
        if not isinstance(target, ast.Tuple) or not isinstance(target.elts[0], ast.Name):
            return None
        (position, target), over = (target.elts[0].id, target.elts[1]), over.args[0]
    which = slice(None)
    if isinstance(over, ast.Subscript) and isinstance(over.slice, ast.Slice):
        if over.slice.step is not None:
            return None
        try:
            bounds = [s and ast.literal_eval(s) for s in (over.slice.lower, over.slice.upper)]
        except ValueError:
            return None
        which, over = slice(*bounds), over.value
    is_groups = isinstance(over, ast.Attribute) and over.attr == "param_groups"
    return (target.id, position, which) if is_groups and isinstance(target, ast.Name) else None


def _index(node: ast.Subscript) -> int | None:
    """Number of the group in `optimizer.param_groups[0]`."""
    is_groups = isinstance(node.value, ast.Attribute) and node.value.attr == "param_groups"
    try:
        value = ast.literal_eval(node.slice)
    except ValueError:
        return None
    return value if is_groups and isinstance(value, int) else None


class _Options(ast.NodeTransformer):
    """Statements about a group with its own options in them.

    Args:
        group: name of the group.
        options: its options.
        position: name of its number; "" for none.
        number: its number.
    """

    def __init__(self, group: str, options: Mapping[str, Any], position: str, number: int) -> None:
        self._group, self._options = group, options
        self._position, self._number = position, number

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return statements without branches of other groups."""
        module = self.visit(ast.Module([*statements], []))
        assert isinstance(module, ast.Module)
        return module.body

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Write the option of the group."""
        key = str(node.slice.value) if isinstance(node.slice, ast.Constant) else "lr"
        is_own = isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == self._group
        if is_own and key != "lr" and isinstance(self._options.get(key), int | float):
            return ast.Constant(self._options[key])
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Write the number of the group."""
        is_read = node.id == self._position and isinstance(node.ctx, ast.Load)
        return ast.Constant(self._number) if is_read else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Write the option of `group.get("lr_scale", 1.0)`."""
        if ast.unparse(node.func) == f"{self._group}.get" and isinstance(
            node.args[0], ast.Constant
        ):
            key = str(node.args[0].value)
            if key in self._options and key != "lr":
                return ast.Constant(self._options[key])
            return node.args[1] if len(node.args) > 1 else ast.Constant(None)
        self.generic_visit(node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Decide `"lr_scale" in group`, and a comparison of numbers."""
        if ast.unparse(node.comparators[0]) == self._group and isinstance(node.left, ast.Constant):
            is_in = str(node.left.value) in self._options
            return ast.Constant(is_in is isinstance(node.ops[0], ast.In))
        self.generic_visit(node)
        held = [s.value for s in (node.left, *node.comparators) if isinstance(s, ast.Constant)]
        if len(held) != len(node.ops) + 1:
            return node
        compared = [COMPARED[type(op)] for op in node.ops]
        try:
            holds = all(c(a, b) for c, a, b in zip(compared, held, held[1:], strict=False))
        except TypeError:  # None > 0, which the script asks behind `is not None`
            return node
        return ast.Constant(holds)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Decide `"fix_lr" in group and group["fix_lr"]`."""
        deciding = isinstance(node.op, ast.Or)
        values = [self.visit(value) for value in node.values]
        known = [bool(value.value) for value in values if isinstance(value, ast.Constant)]
        rest = [value for value in values if not isinstance(value, ast.Constant)]
        if deciding in known or not rest:
            return ast.Constant(deciding in known if deciding else deciding not in known)
        return rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)

    def visit_If(self, node: ast.If) -> Any:
        """Keep the branch of the group."""
        node.test = self.visit(node.test)
        test, runs = node.test, True
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, runs = test.operand, not runs
        if isinstance(test, ast.Constant):
            return self.block(node.body if bool(test.value) is runs else node.orelse)
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Keep the value of the group."""
        self.generic_visit(node)
        if not isinstance(node.test, ast.Constant):
            return node
        return node.body if node.test.value else node.orelse


def _own(statement: ast.AST) -> list[ast.AST]:
    """Nodes of a statement, without functions and classes in it."""
    if isinstance(statement, FunctionNode | ast.ClassDef | ast.Lambda):
        return []
    return [statement, *(node for c in ast.iter_child_nodes(statement) for node in _own(c))]


def _sets(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.expr) and is_rate(target) for target in targets)


def _without(value: ast.expr, names: set[str]) -> ast.expr | None:
    """Return a product without the factors that read `names`; None if they are more than factors."""
    if not names & {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}:
        return value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        left, right = _without(value.left, names), _without(value.right, names)
        is_one = [isinstance(side, ast.Constant) and side.value == 1.0 for side in (left, right)]
        if left is None or right is None:
            return None
        return right if is_one[0] else left if is_one[1] else ast.BinOp(left, ast.Mult(), right)
    if isinstance(value, ast.Name | ast.Subscript):  # the factor of a group
        return ast.Constant(1.0)
    return None
