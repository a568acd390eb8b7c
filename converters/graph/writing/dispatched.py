"""Attention through one function, whose implementation the configuration chooses (`--attention`)."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from converters.graph.expression import code
from converters.graph.recording.trace import GraphError
from converters.graph.writing.boundaries import ATTEND
from converters.graph.writing.holes import fill
from converters.graph.writing.model import Class, Model

# Names that the configuration may have; "" leaves each call as it is.
IMPLEMENTATIONS = ("auto", "xla", "cudnn", "splash")
# Those of one kind of device. A port is compared with its original on the CPU, which has none.
KERNELS = ("cudnn", "splash")
# The setting, and the parameter of functions of the original that are given it.
_SETTING, _PARAMETER = "attention", "implementation"
_FUNCTION = "dot_product_attention"
# Calls that it takes the place of → the parameter that their fourth argument is.
_CALLS = {
    f"jax.nn.{_FUNCTION}": "mask",
    "masked_attention": "mask",
    "biased_attention": "bias",
}


def with_dispatch(
    model: Model,
    functions: Sequence[ast.FunctionDef],
    implementation: str,
    *,
    on_mesh: bool = False,
) -> tuple[Model, list[ast.FunctionDef]]:
    """A model whose attention is one function. The given classes and functions stay as they are.

    Args:
        model: the classes.
        functions: functions of the original.
        implementation: the default, of `IMPLEMENTATIONS`.
        on_mesh: whether devices of a mesh call it each with their part of the batch and of the heads.

    Raises:
        GraphError: the model has no attention, or no place for the setting.
    """
    if _SETTING in model.settings:
        raise GraphError(
            f"--attention: the model has a setting of the name {_SETTING}", "leave --attention out"
        )
    receivers = _attending(functions)
    written = [
        _with_implementation(function) if function.name in receivers else function
        for function in (
            _Dispatched(receivers, ast.Name(_PARAMETER, ast.Load()), on_mesh).visit(_copied(each))
            for each in functions
        )
    ]
    classes, reading = [], set()
    for cls in model.classes:
        visitor = _Dispatched(receivers, code(f"self.config.{_SETTING}"), on_mesh)
        methods = {
            name: replace(
                method,
                body=[visitor.visit(_copied(statement)) for statement in method.body],
                result=visitor.visit(_copied(method.result)),
            )
            for name, method in cls.methods.items()
        }
        reading |= {cls.name} if visitor.count else set()
        classes.append(replace(cls, methods=methods) if visitor.count else cls)
    if not reading:
        raise GraphError(
            "--attention: the model calls no attention that a kernel computes",
            "leave --attention out",
        )
    settings = {**model.options, _SETTING: implementation}
    return replace(model, classes=_configured(classes, reading), options=settings), written


def _attending(functions: Sequence[ast.FunctionDef]) -> set[str]:
    """The functions that compute attention, or call one that does."""
    receivers: set[str] = set()
    while True:
        more = {
            function.name
            for function in functions
            if any(
                isinstance(node, ast.Call) and _called(node) in {*_CALLS, *receivers}
                for node in ast.walk(function)
            )
        }
        if more <= receivers:
            return receivers
        receivers |= more


def _with_implementation(function: ast.FunctionDef) -> ast.FunctionDef:
    """A function with a parameter for the implementation."""
    function.args.kwonlyargs.append(ast.arg(_PARAMETER, ast.Name("str", ast.Load())))
    function.args.kw_defaults.append(None)
    return function


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""


class _Dispatched(ast.NodeTransformer):
    """Calls of attention, and of functions that compute it, with the implementation."""

    def __init__(self, receivers: Set[str], implementation: ast.expr, on_mesh: bool) -> None:
        self.receivers, self.implementation, self.on_mesh = receivers, implementation, on_mesh
        self.count = 0

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        name = _called(node)
        if name not in self.receivers and name not in _CALLS:
            return node
        self.count += 1
        keyword = ast.keyword(_PARAMETER, self.implementation)
        if name in self.receivers:
            return ast.Call(node.func, node.args, [*node.keywords, keyword])
        arguments, keywords = node.args[:3], list(node.keywords)
        keywords[:0] = [ast.keyword(_CALLS[name], value) for value in node.args[3:4]]
        function = ast.Name(_FUNCTION, ast.Load())
        if self.on_mesh:
            arguments, function = [function, *arguments], ast.Name(ATTEND, ast.Load())
        return ast.Call(function, arguments, [*keywords, keyword])


def _configured(classes: Sequence[Class], reading: Set[str]) -> tuple[Class, ...]:
    """Classes of which those that read the setting, and all that hold them, have the configuration."""
    known: Mapping[str, Class] = {cls.name: cls for cls in classes}
    needed = {name for name in reading if not known[name].configured}
    while True:
        holders = {
            cls.name
            for cls in classes
            if not cls.configured
            and any(
                isinstance(node, ast.Name) and node.id in needed
                for statement in cls.setup
                for node in ast.walk(statement)
            )
        }
        if holders <= needed:
            break
        needed |= holders
    visitor = _WithConfig(needed)
    return tuple(
        replace(
            cls,
            configured=cls.configured or cls.name in needed,
            setup=[visitor.visit(_copied(statement)) for statement in cls.setup],
        )
        if needed
        else cls
        for cls in classes
    )


class _WithConfig(ast.NodeTransformer):
    """Calls that make modules of these classes, with the configuration as the first argument."""

    def __init__(self, names: Set[str]) -> None:
        self.names = names

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self.names:
            return ast.Call(node.func, [code("self.config"), *node.args], node.keywords)
        return node


def _copied(tree: Any) -> Any:
    return fill(tree, lambda hole: hole)
