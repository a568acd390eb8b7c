"""Origins of numbers, read from the source lines of the running frames, innermost first.

An expression counts as the origin only if it has the number's value in the running frame.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch

from converters.graph.files import tree_of
from converters.graph.starts.law import Leaf, Number, Turn

_DEPTH = 16
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)
_FUNCTIONS = ("sqrt", "log", "exp", "log2", "int", "float", "max", "min", "abs")


def number(value: Any, frame: FrameType | None, names: tuple[str, ...] = ()) -> Number:
    """A number in the arguments of a frame's call, with its origin.

    Args:
        value: the number.
        frame: the frame whose running instruction uses the number.
        names: the called function's names for the argument.
    """
    plain = float(value)
    node = None if frame is None else running(frame)
    if node is None or frame is None:
        return Number(plain)
    for inner in _candidates(node, names):
        origin = _followed(inner, frame, value, 0)
        if origin is not None:
            return Number(
                plain, None if isinstance(origin, ast.Constant) else origin, _fixed(origin)
            )
    return Number(plain)


def _candidates(node: ast.AST, names: tuple[str, ...]) -> Iterator[ast.expr]:
    match node:
        case ast.Call(args=given, keywords=keywords):
            yield from (keyword.value for keyword in keywords if keyword.arg in names)
            yield from (keyword.value for keyword in keywords if keyword.arg not in names)
            yield from given
        case ast.BinOp(left=left, right=right):
            yield from (left, right)
        case ast.AugAssign(value=value) | ast.UnaryOp(operand=value):
            yield value
        case ast.Assign(value=value):
            yield value
            yield from _candidates(value, names)
        case ast.expr():
            yield node


def _fixed(node: ast.expr) -> bool:
    """Whether an origin consists only of numbers in the source."""
    return not any(isinstance(leaf, Leaf | Turn) for leaf in ast.walk(node))


def running(frame: FrameType) -> ast.AST | None:
    """The source node of a frame's running instruction."""
    at = frame.f_lasti // 2
    place = next(
        (position for index, position in enumerate(frame.f_code.co_positions()) if index == at),
        None,
    )
    if place is None or None in place:
        return None
    return _nodes(frame.f_code.co_filename).get(place)  # type: ignore[arg-type]


@cache
def _nodes(file: str) -> dict[tuple[int, int, int, int], ast.AST]:
    tree = tree_of(file)
    return {
        (node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0): node
        for node in ast.walk(tree)
        if isinstance(node, ast.expr | ast.AugAssign | ast.Assign)
    }


@cache
def _function(code: CodeType) -> ast.FunctionDef | None:
    """The function definition that a frame runs."""
    for node in ast.walk(tree_of(code.co_filename)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def evaluated(node: ast.expr, frame: FrameType) -> Any:
    """The value of a side-effect-free expression in a frame, or None."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            for names in (frame.f_locals, frame.f_globals):
                if name in names:
                    return names[name]
        case ast.Attribute(value=inner, attr=name):
            holder = evaluated(inner, frame)
            try:
                return None if holder is None else getattr(holder, name, None)
            except Exception:  # whatever a property of another's raises
                return None
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            number = evaluated(inner, frame)
            return -number if _is_number(number) else None
        case ast.BinOp(op=operator) if isinstance(operator, _OPERATORS):
            sides = [evaluated(side, frame) for side in (node.left, node.right)]
            return _computed(operator, *sides) if all(map(_is_number, sides)) else None
        case ast.BoolOp(op=ast.Or(), values=[first, second]):
            return evaluated(first, frame) or evaluated(second, frame)
        case ast.IfExp(test=test, body=body, orelse=other):
            chosen = evaluated(test, frame)
            if isinstance(chosen, bool):
                return evaluated(body if chosen else other, frame)
            values = [evaluated(branch, frame) for branch in (body, other)]
            numbers = [branch_value for branch_value in values if _is_number(branch_value)]
            return numbers[0] if numbers and len(set(numbers)) == 1 else None
        case ast.Call(
            func=ast.Attribute(value=inner, attr="get_text_config"), args=[], keywords=[]
        ):
            holder = evaluated(inner, frame)
            return holder.get_text_config() if hasattr(holder, "get_text_config") else None
        case ast.Call(func=function, args=given, keywords=[]) if _named(function):
            values = [evaluated(argument, frame) for argument in given]
            return _called(_named(function), values) if all(map(_is_number, values)) else None
        case ast.Call(func=ast.Attribute(value=inner, attr="size"), args=[at], keywords=[]):
            return _side(evaluated(inner, frame), evaluated(at, frame))
        case ast.Call(
            func=ast.Name(id="getattr"), args=[inner, ast.Constant(value=str(name)), *rest]
        ):
            holder = evaluated(inner, frame)
            if holder is not None and hasattr(holder, name):
                return getattr(holder, name)
            return evaluated(rest[0], frame) if rest else None
        case ast.Subscript(value=ast.Attribute(value=inner, attr="shape"), slice=at):
            return _side(evaluated(inner, frame), evaluated(at, frame))
        case ast.Subscript(value=inner, slice=at):
            holder, place = evaluated(inner, frame), evaluated(at, frame)
            if isinstance(holder, dict | list | tuple) and isinstance(place, int | str):
                try:
                    return holder[place]  # type: ignore[index]
                except (LookupError, TypeError):
                    return None
    return None


def _side(tensor: Any, axis: Any) -> int | None:
    if not isinstance(tensor, torch.Tensor) or not isinstance(axis, int):
        return None
    return int(tensor.shape[axis]) if -tensor.dim() <= axis < tensor.dim() else None


def _named(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) if name in _FUNCTIONS:
            return name
        case ast.Attribute(value=ast.Name(id="math" | "np" | "numpy"), attr=name):
            return name if name in _FUNCTIONS else ""
    return ""


_PLAIN: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "max": max,
    "min": min,
    "abs": abs,
}


def _called(name: str, values: list[Any]) -> Any:
    function: Callable[..., Any] | None = getattr(math, name, None) or _PLAIN.get(name)
    try:
        return None if function is None else function(*values)
    except (ArithmeticError, ValueError, TypeError):
        return None


def _computed(operator: ast.operator, left: Any, right: Any) -> Any:
    tree = ast.Expression(ast.BinOp(ast.Name("a", ast.Load()), operator, ast.Name("b", ast.Load())))
    try:
        compiled = compile(ast.fix_missing_locations(tree), "", "eval")
        return eval(compiled, {"__builtins__": {}}, {"a": left, "b": right})
    except (ArithmeticError, ValueError):
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(result: Any, value: Any) -> bool:
    return _is_number(result) and math.isclose(result, value, rel_tol=1e-9)


def _followed(node: ast.expr, frame: FrameType, value: Any, depth: int) -> ast.expr | None:
    """The expression with each name replaced by its origin; None if its value differs."""
    if depth > _DEPTH or not _same(evaluated(node, frame), value):
        return None
    match node:
        case ast.Constant():
            return ast.Constant(node.value)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            inner_origin = _followed(inner, frame, -value, depth + 1)
            return None if inner_origin is None else ast.UnaryOp(ast.USub(), inner_origin)
        case ast.BinOp(left=left, op=operator, right=right):
            sides = [_part(side, frame, depth + 1) for side in (left, right)]
            if sides[0] is None or sides[1] is None:
                return None
            return ast.BinOp(sides[0], operator, sides[1])
        case ast.BoolOp(values=[first, second]):
            chosen = first if evaluated(first, frame) else second
            return _followed(chosen, frame, value, depth + 1)
        case ast.IfExp(test=test, body=body, orelse=other):
            condition = evaluated(test, frame)
            ways = (
                [body, other] if not isinstance(condition, bool) else [body if condition else other]
            )
            origins = (_followed(branch, frame, value, depth + 1) for branch in ways)
            return next((origin for origin in origins if origin is not None), None)
        case ast.Call(func=ast.Attribute(value=inner, attr="size"), args=[at]):
            return _of_side(inner, evaluated(at, frame), frame, value)
        case ast.Subscript(value=ast.Attribute(value=inner, attr="shape"), slice=at):
            return _of_side(inner, evaluated(at, frame), frame, value)
        case ast.Call(
            func=ast.Name(id="getattr"), args=[inner, ast.Constant(value=str(name)), *rest]
        ):
            holder = evaluated(inner, frame)
            if hasattr(holder, name):
                return Leaf(holder, name, value)
            return _followed(rest[0], frame, value, depth + 1) if rest else None
        case ast.Call(func=function, args=arguments) if _named(function):
            parts = [_part(argument, frame, depth + 1) for argument in arguments]
            if any(part is None for part in parts):
                return None
            name = _named(function)
            called = f"math.{name}" if hasattr(math, name) else name
            function_node = ast.parse(called, mode="eval").body
            return ast.Call(function_node, [part for part in parts if part is not None], [])
        case ast.Attribute(value=inner, attr=name):
            holder = evaluated(inner, frame)
            return None if holder is None or inspect.ismodule(holder) else Leaf(holder, name, value)
        case ast.Subscript(value=inner, slice=ast.Constant(value=str(name))):
            said = _entry(inner, name, frame)
            origin = None if said is None else _followed(said, frame, value, depth + 1)
            held = None if origin is None else Number(value, origin)
            return Leaf(evaluated(inner, frame), name, value, inner=held)
        case ast.Name(id=name):
            return _of_name(name, frame, value, depth)
    return None


def _entry(holder: ast.expr, key: str, frame: FrameType) -> ast.expr | None:
    """The expression of a key in a dict display assigned to a local variable."""
    function = _function(frame.f_code)
    if function is None or not isinstance(holder, ast.Name):
        return None
    for node in ast.walk(function):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=target)], value=ast.Dict(keys=keys, values=values)
            ):
                if target != holder.id:
                    continue
                for name, entry in zip(keys, values, strict=True):
                    if isinstance(name, ast.Constant) and name.value == key:
                        return entry
    return None


def _part(node: ast.expr, frame: FrameType, depth: int) -> ast.expr | None:
    value = evaluated(node, frame)
    return _followed(node, frame, value, depth) if _is_number(value) else None


def _of_side(inner: ast.expr, axis: Any, frame: FrameType, value: Any) -> ast.expr | None:
    """The origin of a size of a tensor that a module holds."""
    match inner:
        case ast.Attribute(value=above, attr=name):
            holder, tensor = evaluated(above, frame), evaluated(inner, frame)
            if isinstance(holder, torch.nn.Module) and isinstance(axis, int):
                return Leaf(holder, name, value, axis % tensor.dim())
    return None


def _of_name(name: str, frame: FrameType, value: Any, depth: int) -> ast.expr | None:
    """The origin of a local variable (its assignment) or of an argument (the caller's expression).

    The variable of a loop that counts is its turn.
    """
    if type(value) is int and _counts(name, frame):
        return Turn(value)
    function = _function(frame.f_code)
    if function is None:
        return None
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=given) if target == name:
                pass
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as given) if (
                target == name
            ):
                pass
            case _:
                continue
        if isinstance(given, ast.Name) and given.id == name:
            continue
        origin = _followed(given, frame, value, depth + 1)
        if origin is not None:
            return origin
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    order = [parameter.arg for parameter in arguments]
    if name not in order:
        return None
    given_by = _given(name, order, frame, value, depth)
    holder = frame.f_locals.get(order[0])
    if frame.f_code.co_name == "__init__" and isinstance(holder, torch.nn.Module):
        inner = None if given_by is None else Number(value, given_by, _fixed(given_by))
        return Leaf(holder, name, value, inner=inner)
    return given_by


def _counts(name: str, frame: FrameType) -> bool:
    """Whether a variable counts the turns of a loop or comprehension around a frame's running instruction."""
    node = running(frame)
    loops = () if node is None else _loops(frame.f_code.co_filename)
    for loop in loops:
        pairs, parts = (
            ([(loop.target, loop.iter)], loop.body)
            if isinstance(loop, ast.For)
            else ([(each.target, each.iter) for each in loop.generators], [loop.elt])
        )
        if any(_is_counter(name, *pair) for pair in pairs) and any(
            inner is node for part in parts for inner in ast.walk(part)
        ):
            return True
    return False


def _is_counter(name: str, target: ast.expr, iterable: ast.expr) -> bool:
    match target, iterable:
        case ast.Name(id=counter), ast.Call(func=ast.Name(id="range")):
            return counter == name
        case ast.Tuple(elts=[ast.Name(id=counter), _]), ast.Call(func=ast.Name(id="enumerate")):
            return counter == name
    return False


@cache
def _loops(file: str) -> tuple[ast.For | ast.ListComp | ast.GeneratorExp, ...]:
    kinds = ast.For | ast.ListComp | ast.GeneratorExp
    return tuple(node for node in ast.walk(tree_of(file)) if isinstance(node, kinds))


def _given(
    name: str, order: list[str], frame: FrameType, value: Any, depth: int
) -> ast.expr | None:
    """The caller's expression for an argument, or its default if that is a number and not
    overridden.
    """
    above = frame.f_back
    while above is not None and above.f_code.co_filename.endswith(_PASSED):
        above = above.f_back
    node = None if above is None else running(above)
    if above is not None and isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == name:
                return _followed(keyword.value, above, value, depth + 1)
        bound = 1 if order[0] in ("self", "cls") else 0
        at = order.index(name) - bound
        if not any(isinstance(argument, ast.Starred) for argument in node.args) and 0 <= at < len(
            node.args
        ):
            origin = _followed(node.args[at], above, value, depth + 1)
            if origin is not None:
                return origin
    function = _function(frame.f_code)
    assert function is not None
    defaults = dict(
        zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
    )
    usual = next((default for arg, default in defaults.items() if arg.arg == name), None)
    if isinstance(usual, ast.Constant) and _same(usual.value, value):
        return ast.Constant(usual.value)
    return None


# Decorators that stand between a caller and a function.
_PASSED = ("torch/utils/_contextlib.py", "functools.py", "torch/overrides.py")
