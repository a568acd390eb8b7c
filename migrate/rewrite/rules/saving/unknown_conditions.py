"""Saves below an unknown condition, which perhaps only one replica reaches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import words
from migrate.reading.names.bindings import passed_for
from migrate.reading.replicas.options import same_on_all
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, nodes_of

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

# Packages whose decorators run a function on every replica, and whose questions all answer alike.
ALIKE = sys.stdlib_module_names | words(
    "absl accelerate builtins click deepspeed fire gin hydra jaxtyping numpy pydantic pytest sacred tqdm "
    "torch torch_xla transformers typer wandb"
)


def unseen_condition(call: cst.Call, context: Workspace) -> str | None:
    """Return what may keep some replicas from a save though nothing shows it, and its line; or None.

    A parameter that no caller fills (`if leader:`), a question to an unknown library (`if is_boss():`), or a
    decorator of one. A collective below these is not asked for: the original would hang as well.
    """
    if not context.calls.replicated or context.guards.around(call) is not None:
        return None
    below: cst.CSTNode = call
    for above in context.ancestors(call):
        if isinstance(above, cst.If) and below is not above.test:
            for test in _parts(above.test):
                if _is_unknown(test, context):
                    return f"`{code(test)}` ({at_line(context.position(above).line)})"
        if isinstance(above, cst.FunctionDef):
            return _decorated(above, context)
        below = above
    return None


def _parts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the parts of a test that must all hold; `not leader` is asked as `leader` is."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_parts(test.left), *_parts(test.right)]
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _parts(test.expression)
    return [test]


def _is_unknown(test: cst.BaseExpression, context: Workspace) -> bool:
    if isinstance(test, cst.Name):
        parameters = [b.node for b in context.bindings(test) if isinstance(b.node, cst.Param)]
        if not parameters or any(p.annotation or p.default for p in parameters):
            return False
        return not list(passed_for(test, context)) and not same_on_all(test, context)
    if isinstance(test, cst.Call) and not test.args:
        return _is_of_unknown_library(test.func, context)
    return False


def _decorated(function: cst.FunctionDef, context: Workspace) -> str | None:
    """Return the decorator of an unknown library on a function that only saves: no training loop in it."""
    loops = nodes_of(function.body, cst.For | cst.While)  # type: ignore[arg-type]
    if any(context.effects.is_step_loop(loop) or context.effects.of(loop.body) for loop in loops):
        return None
    for decorator in function.decorators:
        named = decorator.decorator
        func = named.func if isinstance(named, cst.Call) else named
        if _is_of_unknown_library(func, context):
            return f"`@{code(func)}` ({at_line(context.position(decorator).line)})"
    return None


def _is_of_unknown_library(func: cst.BaseExpression, context: Workspace) -> bool:
    name = context.qualified_name(func)
    if name is None or context.calls.is_local(name):
        return False
    return "." in name and name.lstrip(".").partition(".")[0] not in ALIKE
