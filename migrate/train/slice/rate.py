"""The function or method of a script that gives the learning rate: `group["lr"] = get_lr(it)`.

It may also set the rates itself: `adjust(optimizer, epoch)`, with `group["lr"] = lr` in its own body.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence

from migrate.train.frames import Frame
from migrate.train.slice.text import FunctionNode, ScriptText, first_line


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


def rate_setters(script: ScriptText, frames: Sequence[Frame]) -> list[tuple[str, int, int]]:
    """Return the functions that set rates and are no part of the loop: name, first line, first statement.

    Args:
        script: the script.
        frames: frames of its backward.
    """
    inside = {(frame.function, frame.first) for frame in frames}
    return [
        (node.name, first_line(node), first_line(_begin(node)))
        for node in ast.walk(script.tree)
        if isinstance(node, ast.FunctionDef)
        and (node.name, first_line(node)) not in inside
        and as_rate(node, "") is not None
    ]


def _begin(function: ast.FunctionDef) -> ast.stmt:
    """First statement of a function that computes."""
    plain = ast.Import | ast.ImportFrom
    texts = [ast.get_docstring(function) is not None and function.body[0]]
    computes = (s for s in function.body if not isinstance(s, plain) and s not in texts)
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
        of_group = {
            name.id
            for node in _own(statement)
            if isinstance(node, ast.For)
            for name in ast.walk(node.target)
            if isinstance(name, ast.Name)
        }
        rates = [
            _without(node.value, of_group) for node in assigned if isinstance(node, ast.Assign)
        ]
        different = {rate and ast.unparse(rate) for rate in rates}
        if len(different) > 1 or rates[0] is None:
            return None
        body = [copy.deepcopy(before) for before in setter.body[:index]]
        result = ast.FunctionDef(
            setter.name,
            ast.arguments([], [ast.arg(argument)], None, [], [], None, []),
            [*body, ast.Return(rates[0])],
            [],
            lineno=setter.lineno,
            col_offset=0,
        )
        return ast.fix_missing_locations(result)
    return None


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
