"""Repeated layers whose forward pass is computed again in the backward pass (`nn.remat`)."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from converters.graph.expression import call, code
from converters.graph.writing.forms.loops import member_of, singular
from converters.graph.writing.holes import fill
from converters.graph.writing.model import Class, Method, Model
from converters.graph.writing.repeated.chains import NotAChainError, chain_of, layer_lists
from converters.graph.writing.training import MODE

# What is kept for the backward pass → the policy of jax.checkpoint; None: nothing but the inputs of a layer.
POLICIES = {
    "nothing": None,
    "dots": "jax.checkpoint_policies.dots_with_no_batch_dims_saveable",
}


def with_remat(model: Model, kept: str) -> tuple[Model, Mapping[str, str]]:
    """Wrap the repeated layers of a model in `nn.remat`. The given classes stay as they are.

    Of lists within lists (stages of blocks), the inner ones are wrapped.

    Args:
        model: the classes.
        kept: what is kept for the backward pass, of `POLICIES`.

    Returns:
        The model, and for each list that cannot be wrapped the reason.
    """
    known = {cls.name: cls for cls in model.classes}
    left: dict[str, str] = {}
    chained: dict[tuple[str, str], list[str]] = {}
    for cls in model.classes:
        for attribute, parts, _ in layer_lists(cls):
            class_names = [_made(part) for part in parts]
            try:
                if any(name not in known for name in class_names):
                    raise NotAChainError("its layers are layers of Flax")
                _require_calls(cls, attribute)
                if len({_signature(known[name]) for name in class_names}) > 1:
                    raise NotAChainError("its layers take different arguments")
            except NotAChainError as error:
                left[f"{cls.name}.{attribute}"] = str(error)
            else:
                chained[cls.name, attribute] = class_names
    outer = {
        key
        for key, class_names in chained.items()
        if any(name in _below(known, class_names) for name, _ in chained)
    }
    classes = []
    for cls in model.classes:
        changed = cls
        for attribute, *_ in layer_lists(cls):
            if (cls.name, attribute) in chained.keys() - outer:
                changed = _wrapped(changed, attribute, known, kept)
        classes.append(changed)
    return replace(model, classes=tuple(classes)), left


def _made(part: ast.expr) -> str:
    match part:
        case ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def _require_calls(cls: Class, attribute: str) -> None:
    """Refuse a list whose layers are not called one after the other."""
    chains = [chain_of(cls, method, attribute) for method in cls.methods.values()]
    if not any(chains):
        raise NotAChainError("its layers are not called one after the other")


def _below(known: Mapping[str, Class], class_names: Collection[str]) -> set[str]:
    """The classes of these layers, and of all that they hold."""
    below: set[str] = set()
    queue = [*class_names]
    while queue:
        name = queue.pop()
        if name in known and name not in below:
            below.add(name)
            queue += [
                node.id
                for statement in known[name].setup
                for node in ast.walk(statement)
                if isinstance(node, ast.Name)
            ]
    return below


def _wrapped(cls: Class, attribute: str, known: Mapping[str, Class], kept: str) -> Class:
    """A class with one of its lists wrapped."""
    parts = next(parts for name, parts, _ in layer_lists(cls) if name == attribute)
    names = dict.fromkeys(map(_made, parts))
    called: dict[str, str] = {}
    static: dict[str, tuple[int, ...]] = {}
    for number, name in enumerate(names):
        method = known[name].methods["__call__"]
        parameters = _parameters(method, known[name].takes_mode)
        static[name] = tuple(
            place for place, parameter in enumerate(parameters, 1) if _is_static(parameter, method)
        )
        called[name] = f"remat_{singular(attribute)}{f'_{number + 1}' * (number > 0)}"
    methods = {
        name: replace(
            method,
            body=[
                _Positional(attribute, parts, known, static).visit(_copied(statement))
                for statement in method.body
            ],
        )
        if chain_of(cls, method, attribute) is not None
        else method
        for name, method in cls.methods.items()
    }
    setup: list[ast.stmt] = []
    for statement in cls.setup:
        match statement:
            case ast.Assign(targets=[ast.Attribute(attr=same) as target], value=value) if (
                same == attribute
            ):
                setup += [
                    ast.Assign(
                        [ast.Name(called[name], ast.Store())], _remat(name, static[name], kept)
                    )
                    for name in names
                ]
                setup.append(ast.Assign([target], _WrappedNames(called).visit(_copied(value))))
            case _:
                setup.append(statement)
    return replace(cls, setup=setup, methods=methods)


def _signature(cls: Class) -> tuple[str, ...]:
    method = cls.methods.get("__call__")
    return () if method is None else (*_parameters(method, cls.takes_mode), *sorted(method.sizes))


def _remat(name: str, static: tuple[int, ...], kept: str) -> ast.expr:
    options: dict[str, object] = {}
    if POLICIES[kept] is not None:
        options["policy"] = code(str(POLICIES[kept]))
    if static:
        options["static_argnums"] = static
    return call("nn.remat", ast.Name(name, ast.Load()), **options)


def _parameters(method: Method, takes_mode: bool) -> list[str]:
    """The parameters of a method in their order, without `self`."""
    return [*method.parameters(), *([MODE] if takes_mode else [])]


def _is_static(parameter: str, method: Method) -> bool:
    return parameter == MODE or parameter in method.sizes


class _Positional(ast.NodeTransformer):
    """Calls of a list's layers with arguments by position, where some are static: nn.remat asks for that."""

    def __init__(
        self,
        attribute: str,
        parts: Sequence[ast.expr],
        known: Mapping[str, Class],
        static: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.attribute, self.known = attribute, known
        self.needed = any(static.values())
        self.class_names = [_made(part) for part in parts]
        self.variable = ""

    def visit_For(self, node: ast.For) -> ast.For:
        match node:
            case ast.For(target=ast.Name(id=name), iter=ast.Attribute(attr=attr)) if (
                attr == self.attribute
            ):
                self.variable = name
                self.generic_visit(node)
                self.variable = ""
                return node
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        match node.func:
            case ast.Name(id=name) if name == self.variable and name:
                return self._positional(node, self.class_names[0])
        member = member_of(node.func)
        if member is not None and member[0] == self.attribute:
            at = min(member[1], len(self.class_names) - 1)
            return self._positional(node, self.class_names[at])
        return node

    def _positional(self, node: ast.Call, name: str) -> ast.Call:
        if not self.needed or not node.keywords:
            return node
        parameters = _parameters(self.known[name].methods["__call__"], self.known[name].takes_mode)
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        rest = parameters[len(node.args) :]
        while rest and rest[-1] not in named:
            rest.pop()
        more = [named.get(name, ast.Constant(None)) for name in rest]
        return ast.Call(node.func, [*node.args, *more], [])


class _WrappedNames(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self.names:
            return ast.Call(
                ast.Name(self.names[node.func.id], ast.Load()), node.args, node.keywords
            )
        return node


def _copied(tree: Any) -> Any:
    return fill(tree, lambda hole: hole)
