"""Statements of a script: what they read, bind and end."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from migrate.model.calls.rank_tests import last_part
from migrate.train.slice.called import is_call_of
from migrate.train.slice.text import FunctionNode, blocks, loads, stores

_GROUP = "torch.distributed.init_process_group"
# Calls that end the script.
_NOT_FINITE = ("isfinite", "isinf", "isnan")
_EXITS = ("sys.exit", "exit", "quit", "os._exit")


def names_read(statement: ast.stmt) -> set[str]:
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


# Context managers without an effect on batches, or on what a float32 program computes.
_INERT = ("autocast", "nullcontext", "no_sync", "record_function", "detect_anomaly")


def is_inert(context: ast.expr) -> bool:
    """Whether a context manager has no effect on what a program has."""
    words = ast.unparse(context)
    return any(name in words for name in _INERT)


def is_in_inert(statement: ast.stmt, tree: ast.AST) -> bool:
    """Whether a statement is a `with` of such context managers alone: by their calls, or names for them.

    Args:
        statement: the statement.
        tree: the script, with the assignments of names: `no_sync = model.no_sync if … else nullcontext`.
    """

    def inert(context: ast.expr) -> bool:
        bare = isinstance(context, ast.Call) and not (context.args or context.keywords)
        text = ast.unparse(context.func if bare else context)  # type: ignore[attr-defined]
        values = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and any(ast.unparse(target) == text for target in node.targets)
        ]
        choices = [
            c for v in values for c in ((v.body, v.orelse) if isinstance(v, ast.IfExp) else (v,))
        ]
        return all(map(is_inert, choices or [context]))

    return isinstance(statement, ast.With) and all(
        item.optional_vars is None and inert(item.context_expr) for item in statement.items
    )


def set_attributes(code: ast.AST) -> list[ast.Attribute]:
    """Attributes that code binds."""
    return [
        node
        for node in ast.walk(code)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]


def every_statement(statement: ast.stmt) -> list[ast.stmt]:
    """A statement and those inside of it."""
    return [node for node in ast.walk(statement) if isinstance(node, ast.stmt)]


def loop_targets(statement: ast.stmt) -> set[str]:
    """Names that the head of a loop binds; empty for other statements."""
    if not isinstance(statement, ast.For | ast.AsyncFor):
        return set()
    return {node.id for node in ast.walk(statement.target) if isinstance(node, ast.Name)}


def own_nodes(node: ast.AST) -> Iterable[ast.AST]:
    """Nodes of a statement's own line: not of the statements inside of it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt) or isinstance(node, FunctionNode | ast.Module):
            yield from own_nodes(child)


def parameters(function: FunctionNode) -> list[ast.arg]:
    """All parameters of a function."""
    return [node for node in ast.walk(function.args) if isinstance(node, ast.arg)]


def names_at_definition(function: FunctionNode) -> set[str]:
    """Names that are read where a function is defined: in its defaults, annotations and decorators."""
    every = [*function.args.defaults, *filter(None, function.args.kw_defaults)]
    annotations = [argument.annotation for argument in parameters(function)]
    every += filter(None, (*annotations, function.returns))
    return set[str]().union(*map(loads, every), *map(loads, function.decorator_list))


def settings(tree: ast.Module, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Assignments before the last `exec(…)`, which may read and set each of them, and these calls."""
    calls = {statement for statement in statements if is_exec(tree, statement)}
    last = max((at for at, statement in enumerate(statements) if statement in calls), default=-1)
    return [s for s in statements[: last + 1] if isinstance(s, ast.Assign) or s in calls]


def is_exec(tree: ast.Module, statement: ast.stmt) -> bool:
    """Whether a statement is `exec(text)`, which sees the names of the module."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(value, ast.Call)
        and len(value.args) == 1
        and is_call_of(tree, value.func, "builtins.exec")
    )


def before_definitions(statements: Sequence[ast.stmt]) -> set[ast.stmt]:
    """Statements of a module whose values its definitions read when they are run: defaults and bases."""
    needed: set[str] = set()
    for statement in statements:
        if isinstance(statement, FunctionNode):
            needed |= names_at_definition(statement)
        elif isinstance(statement, ast.ClassDef):
            needed |= set[str]().union(
                *map(loads, (*statement.bases, *statement.keywords, *statement.decorator_list))
            )
            for member in statement.body:
                needed |= (
                    names_at_definition(member)
                    if isinstance(member, FunctionNode)
                    else loads(member)
                )
    early: set[ast.stmt] = set()
    for statement in reversed(statements):
        defines = isinstance(statement, FunctionNode | ast.ClassDef | ast.Import | ast.ImportFrom)
        if not defines and stores(statement)[0] & needed:
            early.add(statement)
            needed |= loads(statement)
    return early


def is_literal(statement: ast.stmt) -> bool:
    """Whether a statement assigns literals: a setting of the script."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    if stores(statement)[1]:  # happy[8:] = 1.0 changes what a call may have made
        return False
    return not any(
        isinstance(node, ast.Call | ast.Name | ast.Attribute) for node in ast.walk(statement.value)
    )


def own_group(tree: ast.Module, statement: ast.stmt) -> str:
    """Text that opens a process group of one rank, for a statement that opens one; "" for others.

    The statement may call a function of the script that opens it.
    """
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return ""
    function = statement.value.func
    if is_call_of(tree, function, _GROUP):
        opens = ast.unparse(function)
    elif isinstance(function, ast.Name) and _opens_group(tree, function.id):
        opens = _GROUP
    else:
        return ""
    return f'{opens}("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)'


def _opens_group(tree: ast.Module, name: str) -> bool:
    """Whether a function of the script opens a process group in a statement of its own."""
    return any(
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and is_call_of(tree, node.value.func, _GROUP)
        for function in ast.walk(tree)
        if isinstance(function, FunctionNode) and function.name == name
        for node in ast.walk(function)
    )


def is_guard(statement: ast.stmt) -> bool:
    """Whether a statement ends the script where a number is not finite: `if not isfinite(x): sys.exit(1)`."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    asks = any(
        isinstance(node, ast.Call) and last_part(node.func) in _NOT_FINITE
        for node in ast.walk(statement.test)
    )
    last = statement.body[-1]
    return asks and (is_exit(last) or isinstance(last, ast.Raise))


def is_exit(statement: ast.stmt) -> bool:
    """Whether a statement ends the script: `sys.exit(1)`, `raise SystemExit`."""
    if isinstance(statement, ast.Raise) and statement.exc is not None:
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "SystemExit"
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return ast.unparse(statement.value.func) in _EXITS
