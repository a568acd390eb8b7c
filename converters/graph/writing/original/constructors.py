"""Values and arguments written in the constructors of the original's classes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from converters.graph.writing.original.names import assigned as locals_of
from converters.graph.writing.original.names import source_tree

CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
# In place of an attribute: the members that a list of modules makes in its own constructor.
MEMBERS = ""


def fills_itself(module: Any) -> bool:
    """Whether a list of modules has a constructor of its own, so that it makes its own members."""
    base = next((cls for cls in CONTAINERS if isinstance(module, cls)), None)
    return base is not None and type(module).__init__ is not base.__init__


def default(cls: Any, name: str) -> Any:
    """Default of an argument of a constructor, or None."""
    try:
        value = inspect.signature(cls).parameters[name].default
    except (KeyError, TypeError, ValueError):
        return None
    return None if value is inspect.Parameter.empty else value


def last(expression: ast.expr) -> str:
    """The last part of a dotted name; "" where it is something else."""
    match expression:
        case ast.Attribute():
            return expression.attr
        case ast.Name():
            return expression.id
    return ""


@cache
def constructors(cls: Any) -> tuple[ast.AST, ...]:
    """The constructors of a class and of those that it is of, torch's own left out."""
    return tuple(
        source_tree(vars(owner)["__init__"])
        for owner in cls.__mro__
        if "__init__" in vars(owner) and not owner.__module__.startswith("torch.")
    )


@cache
def methods(cls: Any) -> tuple[ast.AST, ...]:
    """The methods of a class and of those that it is of, torch's own left out."""
    trees = []
    for owner in cls.__mro__:
        if owner.__module__.startswith("torch.") or owner is object:
            continue
        for member_value in vars(owner).values():
            function = (
                member_value.__func__
                if isinstance(member_value, staticmethod | classmethod)
                else member_value
            )
            if inspect.isfunction(function):
                trees.append(source_tree(function))
    return tuple(trees)


@cache
def assigned(cls: Any, attribute: str) -> tuple[ast.expr, ...]:
    """Expressions that the constructors of a class assign to `self.attribute`, or append to it.

    For `MEMBERS`: what they give to the constructor of the list that the class derives from, or append.
    """
    if attribute == MEMBERS:
        return tuple(member for tree in constructors(cls) for member in _members(tree))
    values = []
    for tree in constructors(cls):
        for node in ast.walk(tree):
            match node:
                case ast.Assign(
                    targets=[ast.Tuple(elts=targets) | ast.List(elts=targets)], value=value
                ):
                    values += [
                        _with_locals(part, tree)
                        for target_part, part in zip(
                            targets, _parts(value, len(targets)), strict=False
                        )
                        if isinstance(target_part, ast.Attribute) and target_part.attr == attribute
                    ]
                    continue
                case ast.Assign(targets=targets, value=value):
                    pass
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    targets = [target]
                case ast.Call(func=ast.Attribute(value=target, attr="append"), args=[value]):
                    targets = [target]
                case ast.Call(
                    func=ast.Attribute(attr="add_module" | "register_buffer"),
                    args=[ast.Constant(value=str(name)), value],
                ):
                    targets = [ast.Attribute(ast.Name("self", ast.Load()), name, ast.Store())]
                case (
                    ast.Call(func=ast.Attribute(attr="add_module"), args=[name, value])
                    | ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id="self"), name, value])
                ) if _may_be(name, attribute):
                    targets = [ast.Attribute(ast.Name("self", ast.Load()), attribute, ast.Store())]
                case _:
                    continue
            if any(
                isinstance(target, ast.Attribute) and target.attr == attribute for target in targets
            ):
                values.append(_with_locals(value, tree))
        if values:
            break
    return tuple(values)


def _members(tree: ast.AST) -> list[ast.expr]:
    """Expressions of the members that a constructor gives to its list: each `Sequential(…)`, or a member."""
    values: list[ast.expr] = []
    whole = ast.Name("Sequential", ast.Load())
    for node in ast.walk(tree):
        match node:
            case (
                ast.Call(
                    func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"),
                    args=[_, *_] as parts,
                )
                | ast.Call(
                    func=ast.Attribute(value=ast.Name() | ast.Attribute(), attr="__init__"),
                    args=[ast.Name(id="self"), *parts],
                )
            ):
                values.append(_with_locals(ast.Call(whole, parts, []), tree))
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Name(id="self"), attr="append" | "extend" | "add_module"
                ),
                args=[*_, value],
            ):
                values.append(value)
    return values


def _parts(value: ast.expr, count: int) -> list[ast.expr]:
    """The expression for each name of `self.a, self.b = …`; none if the source does not show it."""
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) if len(parts) == count:
            return parts
        case ast.GeneratorExp(elt=part) | ast.ListComp(elt=part):
            return [part] * count
    return []


def _may_be(name: ast.expr, attribute: str) -> bool:
    """Whether text that is put together may be this: `"layer_%d" % i`, `f"layer_{i}"`, `"l_" + str(i)`."""
    match name:
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            parts = re.split(r"%\w", text)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            parts = re.split(r"\{[^}]*\}", text)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Add()):
            parts = [text, ""]
        case ast.JoinedStr(values=values):
            parts = [""]
            for piece in values:
                if isinstance(piece, ast.Constant):
                    parts[-1] += str(piece.value)
                else:
                    parts.append("")
        case ast.Constant(value=str(text)):
            parts = [text]
        case _:
            return False
    return re.fullmatch(".+".join(map(re.escape, parts)), attribute) is not None


def _with_locals(value: ast.expr, tree: ast.AST) -> ast.expr:
    """A list that is put together before it becomes an attribute: all that was put into it."""
    inner = value.args[0] if isinstance(value, ast.Call) and value.args else value
    unpacked = [node.value for node in ast.walk(value) if isinstance(node, ast.Starred)]
    lists = {node.id for node in (inner, *unpacked) if isinstance(node, ast.Name)}
    appended = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="append" | "add_module"),
                args=[new, *_],
            ) if name in lists:
                appended.append(new)
            case (
                ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="extend"),
                    args=[ast.List(elts=several) | ast.Tuple(elts=several)],
                )
                | ast.AugAssign(
                    target=ast.Name(id=name), op=ast.Add(), value=ast.List(elts=several)
                )
            ) if name in lists:
                appended += several
    local = locals_of(tree)
    assigned_values = [each for name in sorted(lists) for each in local.get(name, ())]
    return (
        ast.Tuple([value, *assigned_values, *appended], ast.Load())
        if appended or assigned_values
        else value
    )


@cache
def appending_loops(cls: Any, attribute: str) -> tuple[ast.expr, ...]:
    """Expressions that the loops go over that append to a list of a class: `range(depth)`, `widths`.

    The list is the attribute, or a local one that the attribute is made of.
    """
    lists = {f"self.{attribute}".rstrip(".")}
    for expression in assigned(cls, attribute):
        # A list with local parts stands behind the expression that has its name.
        whole = expression.elts[0] if isinstance(expression, ast.Tuple) else expression
        lists |= {node.id for node in ast.walk(whole) if isinstance(node, ast.Name)}
    iterables: list[ast.expr] = []
    for tree in constructors(cls):
        for node in ast.walk(tree):
            match node:
                case ast.For(iter=iterable, body=body):
                    appends = [
                        inner
                        for statement in body
                        for inner in ast.walk(statement)
                        if isinstance(inner, ast.Call)
                        and isinstance(inner.func, ast.Attribute)
                        and inner.func.attr == "append"
                        and ast.unparse(inner.func.value) in lists
                    ]
                    iterables += [iterable] if len(appends) == 1 else []
    return tuple(iterables)


def member(expression: ast.expr, keys: Sequence[str]) -> ast.expr | None:
    """The expression of a module in a list: "0" of `Sequential(Linear(3), ReLU())`.

    None where it does not write one for each (a comprehension, `*layers`).
    """
    for key in keys:
        match expression:
            case ast.Call(args=[ast.List(elts=parts) | ast.Tuple(elts=parts)]):
                pass
            case ast.Call(func=function, args=parts) if last(function) == "Sequential":
                pass
            case _:
                return None
        if not key.isdigit() or any(isinstance(part, ast.Starred) for part in parts):
            return None
        if int(key) >= len(parts):
            return None
        expression = parts[int(key)]
    return expression if keys else None


@cache
def read(tree: ast.AST | None) -> frozenset[str]:
    """The attributes that a function reads or sets."""
    if tree is None:
        return frozenset()
    return frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))


@cache
def read_outside_of_constructors(cls: Any) -> frozenset[str]:
    """The attributes that the methods of a class read, its constructors left out."""
    own = set(constructors(cls))
    return frozenset(name for tree in methods(cls) if tree not in own for name in read(tree))


def _is_torch(cls: type) -> bool:
    return cls.__module__.startswith("torch.")


@cache
def arguments(layer: Any) -> tuple[str, ...]:
    """The names of a constructor's arguments, in order."""
    if isinstance(layer, type) and issubclass(layer, torch.nn.RNNBase) and _is_torch(layer):
        return tuple(inspect.signature(torch.nn.RNNBase).parameters)[1:]  # LSTM's own is `*args`
    try:
        return tuple(inspect.signature(layer).parameters)
    except (TypeError, ValueError):
        return ()
