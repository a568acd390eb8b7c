"""Which numbers of a model are its settings, and what they are called in the original.

A layer's sizes are looked up where the original makes it (`self.fc1 = nn.Linear(config.hidden_size, …)`); a
number in a forward is one if an attribute of the module has that value and the name of a size or a factor.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from converters.graph.expression import SettingFloat, SettingInt, code
from converters.graph.writing.names import source_tree

# Attributes with such names hold sizes and factors; others (a layer's index) meet a value by chance.
_SIZES = re.compile(
    r"dim|size|head|width|height|channel|feature|group|patch|window|vocab|embed|hidden|inner|intermediate|"
    r"rank|state|kernel|stride|experts?|top_?k|num_|n_|_len|length|positions|groups|repeats|rep$|planes|factor"
)
_FACTORS = re.compile(
    r"eps|scal|factor|theta|temperature|alpha|beta|gamma|cap|std|limit|slope|momentum|mult"
)
_NO_SETTING = re.compile(r"idx|index|_id$|token_id|layer_id|training|_version")


def of_number(value: Any, module: Any) -> Any:
    """A number of a module's forward as a setting, if an attribute of the module says that it is one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value in (0, 1, -1, 2, 0.5):
        return value
    names = tuple(_names(value, module))
    if not names:
        return value
    return SettingInt(value, names) if isinstance(value, int) else SettingFloat(value, names)


def _class(module: Any) -> Any:
    return type(module)


def _names(value: int | float, module: Any) -> Iterator[str]:
    pattern = _SIZES if isinstance(value, int) else _FACTORS
    read = _read_in_forward(_class(module))
    found = [
        name
        for name, one in vars(module).items()
        if not isinstance(one, bool)
        and isinstance(one, int | float)
        and type(one) is type(value)
        and one == value
        and pattern.search(name.lower())
        and not _NO_SETTING.search(name)
    ]
    yield from sorted((name.strip("_") for name in found), key=lambda name: name not in read)


@cache
def _read_in_forward(cls: Any) -> frozenset[str]:
    tree = source_tree(cls.forward)
    return frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))


def of_layer(parent: Any, attribute: str, layer: Any, argument: str, value: Any) -> Any:
    """A size of a layer as a setting, by what the original's constructor writes there.

    Args:
        parent: the module that holds it.
        attribute: its name there.
        layer: the layer.
        argument: of the layer's constructor ("out_features", "eps").
        value: what it is.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    for expression in _written(_class(parent), attribute, _class(layer), argument):
        found = _as_written(expression, parent, value)
        if found is not None:
            return found
    return of_number(value, parent)


def of_parameter(owner: Any, name: str, axis: int, value: int) -> Any:
    """A side of a parameter as a setting, by what the original's constructor writes there."""
    for expression in _made(_class(owner), name):
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and len(node.args) > axis:
                found = _as_written(node.args[axis], owner, value)
                if found is not None:
                    return found
    return of_number(value, owner)


def of_count(owner: Any, name: str, value: int) -> Any:
    """The length of a list of modules as a setting: the original's `range(config.num_hidden_layers)`."""
    for expression in _made(_class(owner), name):
        for node in ast.walk(expression):
            if isinstance(node, ast.comprehension):
                inside = (
                    node.iter.args[-1]
                    if isinstance(node.iter, ast.Call) and node.iter.args
                    else None
                )
                found = None if inside is None else _as_written(inside, owner, value)
                if found is not None:
                    return found
    return value


@cache
def _made(cls: Any, attribute: str) -> tuple[ast.expr, ...]:
    """What classes write after `self.attribute =` in their constructors."""
    found = []
    for owner in cls.__mro__:
        if "__init__" not in vars(owner) or owner.__module__.startswith("torch."):
            continue
        for node in ast.walk(source_tree(vars(owner)["__init__"])):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(one, ast.Attribute) and one.attr == attribute for one in targets):
                found.append(node.value)  # type: ignore[attr-defined]
    return tuple(found)


def _as_written(expression: ast.expr, owner: Any, value: int | float) -> Any:
    """What a constructor writes, with its names as settings; None where that is not the value."""
    if isinstance(expression, ast.BinOp) and isinstance(
        expression.op, ast.Mult | ast.FloorDiv | ast.Add | ast.Sub
    ):
        return _computed(expression, owner, value)
    name = _last(expression)
    if not name or _NO_SETTING.search(name):
        return None
    known = _known(expression, owner)
    if known is not None and (type(known) not in (int, float) or known != value):
        return None
    return SettingInt(value, (name,)) if isinstance(value, int) else SettingFloat(value, (name,))


def _computed(expression: ast.BinOp, owner: Any, value: int | float) -> Any:
    """`num_heads * head_dim`, where both are known and give the value."""
    operators: dict[type, tuple[str, Any]] = {
        ast.Mult: ("*", operator.mul),
        ast.FloorDiv: ("//", operator.floordiv),
        ast.Add: ("+", operator.add),
        ast.Sub: ("-", operator.sub),
    }
    symbol, compute = operators[type(expression.op)]
    sides = [_known(one, owner) for one in (expression.left, expression.right)]
    if not all(type(one) is int and one > 0 for one in sides) or compute(*sides) != value:
        return None
    parts = [
        _as_written(one, owner, side) if not isinstance(one, ast.Constant) else side
        for one, side in zip((expression.left, expression.right), sides, strict=True)
    ]
    if any(part is None for part in parts):
        return None
    return code(f"{{a}} {symbol} {{b}}", a=parts[0], b=parts[1])


def _known(expression: ast.expr, owner: Any) -> Any:
    """The value of `config.x`, `self.x` or `x` in a module's constructor, as far as the module shows it."""
    match expression:
        case ast.Constant():
            return expression.value
        case ast.Attribute(value=ast.Name(id="self"), attr=name) | ast.Name(id=name):
            return getattr(owner, name, None)
        case ast.Attribute(value=ast.Name() | ast.Attribute(value=ast.Name(id="self")), attr=name):
            return getattr(getattr(owner, "config", None), name, None)
        case ast.BinOp():
            sides = [_known(one, owner) for one in (expression.left, expression.right)]
            compute = {ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}.get(
                type(expression.op)
            )
            if compute and all(type(one) is int and one for one in sides):
                return compute(*sides)
    return None


def _last(expression: ast.expr) -> str:
    match expression:
        case ast.Attribute():
            return expression.attr.strip("_")
        case ast.Name():
            return expression.id.strip("_")
    return ""


@cache
def _written(cls: Any, attribute: str, layer: Any, argument: str) -> tuple[ast.expr, ...]:
    """What stands for an argument where a class makes a layer of this name."""
    order = _arguments(layer)
    found = []
    for owner in cls.__mro__:
        if "__init__" not in vars(owner) or owner.__module__.startswith("torch."):
            continue
        for node in ast.walk(source_tree(vars(owner)["__init__"])):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            names = [one.attr for one in node.targets if isinstance(one, ast.Attribute)]
            if attribute not in names:
                continue
            named = {one.arg: one.value for one in node.value.keywords}
            if argument in named:
                found.append(named[argument])
            elif argument in order and order.index(argument) < len(node.value.args):
                found.append(node.value.args[order.index(argument)])
        if found:
            break
    return tuple(found)


@cache
def _arguments(layer: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(layer).parameters)
    except (TypeError, ValueError):
        return ()
