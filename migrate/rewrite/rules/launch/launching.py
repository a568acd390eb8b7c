"""Find launching code that only computes the number of processes. A TPU does not need it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from migrate.catalogue.words import EXITS, LOGGING_METHODS
from migrate.model.pure import PURE_CALLS
from migrate.reading.values.devices import is_device_count
from migrate.rewrite.rules.ranks.index_sums import added_index, is_index, is_rank_increment
from migrate.rewrite.rules.ranks.object_fields import ObjectField, kept_on
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import last_part, nodes, nodes_of, string_value

TELLS = frozenset({"print", "warnings.warn"})

Mention = cst.Name | cst.Attribute | cst.Subscript

READS = PURE_CALLS | {"getenv"}


def only_counts(mentions: Sequence[Mention], context: Workspace) -> list[cst.CSTNode] | None:
    """Return the statements that hold `mentions` of a number of processes, if they only count.

    They assign it or check it (`assert n > 1`), perhaps with a warning. None if one of them does more.
    """
    statements: list[cst.CSTNode] = []
    for mention in mentions:
        statement = _counting(mention, context)
        if statement is None:
            return None
        if not any(statement is other for other in statements):
            statements.append(statement)
    return statements


def counted(statement: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield all nodes of a removed statement, except the `else` of an `if`."""
    for root in [statement.test, statement.body] if isinstance(statement, cst.If) else [statement]:
        yield from nodes(root)


def with_aliases(statements: Sequence[cst.CSTNode], context: Workspace) -> list[cst.CSTNode]:
    """Return `statements` with what only counts for them: `n = device_count()` before `size = n`.

    Args:
        statements: statements that go.
        context: the script.
    """
    gone = list(statements)
    inside = {id(node) for statement in gone for node in counted(statement)}
    for statement in gone:  # grows
        name = statement.value if isinstance(statement, cst.Assign) else None
        if not isinstance(name, cst.Name):
            continue
        owner, _ = context.bound_to(name)
        mentions = [
            mention
            for mention in context.mentions(name)
            if isinstance(mention, cst.Name)
            and id(mention) not in inside
            and context.bound_to(mention)[0] is owner
        ]
        for other in only_counts(mentions, context) or ():
            gone.append(other)
            inside |= {id(node) for node in counted(other)}
    return gone


def _counting(mention: Mention, context: Workspace) -> cst.CSTNode | None:
    for above in context.ancestors(mention):
        if isinstance(above, cst.AssignTarget | cst.Assign):
            assign = above if isinstance(above, cst.Assign) else context.parent(above)
            return assign if _is_counted(assign, mention, context) else None
        if isinstance(above, cst.Assert):
            return above if _is_plain(above.test) else None
        if isinstance(above, cst.If):
            in_check = any(node is mention for node in counted(above))
            tested = any(node.deep_equals(mention) for node in nodes(above.test))
            return above if in_check and tested and _only_checks(above, context) else None
        if isinstance(above, cst.BaseStatement) and not isinstance(above, cst.SimpleStatementLine):
            return None
    return None


def _is_counted(assign: cst.CSTNode | None, mention: Mention, context: Workspace) -> bool:
    """Whether `assign` assigns a number or a count of devices to `mention` alone."""
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return False
    value = assign.value
    return assign.targets[0].target is mention and (
        isinstance(value, cst.Integer | cst.Name) or is_device_count(value, context)
    )


def _is_plain(test: cst.BaseExpression) -> bool:
    return all(last_part(call.func) in PURE_CALLS for call in nodes_of(test, cst.Call))


def _only_checks(node: cst.If, context: Workspace) -> bool:
    """Whether an `if` only prints a message or ends the program. It may have an `else`."""
    above = context.parent(node)
    if isinstance(node.orelse, cst.If) or not _is_plain(node.test):
        return False
    if isinstance(above, cst.If) and above.orelse is node:
        return False
    lines = node.body.body
    smalls = [
        small
        for line in lines
        for small in (line.body if isinstance(line, cst.SimpleStatementLine) else [line])
    ]
    return all(_tells(small, context) or _ends(small, context) for small in smalls)


def _tells(node: cst.CSTNode, context: Workspace) -> bool:
    if not isinstance(node, cst.Expr) or not isinstance(node.value, cst.Call):
        return False
    function = node.value.func
    if isinstance(function, cst.Name):
        return function.value in TELLS
    if context.qualified_name(function) in TELLS:
        return True
    return isinstance(function, cst.Attribute) and function.attr.value in LOGGING_METHODS


def _ends(node: cst.CSTNode, context: Workspace) -> bool:
    if isinstance(node, cst.Raise):
        return True
    call = node.value if isinstance(node, cst.Expr) else None
    if not isinstance(call, cst.Call):
        return False
    named = call.func.value if isinstance(call.func, cst.Name) else ""
    return named in EXITS or context.qualified_name(call.func) in EXITS


def overwritten_ranks(
    context: Workspace, call: cst.Call, objects: dict[str, str], worker: cst.FunctionDef | None
) -> Iterator[cst.Assign]:
    """Yield assignments such as `args.rank = node * gpus` whose value no replica sees.

    Args:
        context: the script.
        call: the launching call.
        objects: the names of the objects that it passes, each with the worker's name for it.
        worker: the launched function, which makes `args.rank` its index before anything reads it.
    """
    around = context.function_around(call)
    for place in _set_first(context, objects, worker):
        reads = [
            node
            for node in context.all_of(cst.Attribute, cst.Subscript, cst.Call)
            if (read := kept_on(node)) is not None
            and read.word == place.word
            and not context.launch.in_replica(node)
            and not isinstance(context.parent(node), cst.AssignTarget)
        ]
        if reads:
            continue
        for node in context.all_of(cst.Assign):
            if len(node.targets) == 1:
                plain = all(
                    last_part(inner.func) in READS for inner in context.below(node.value, cst.Call)
                )
                same = kept_on(node.targets[0].target) == place
                if same and plain and context.function_around(node) is around:
                    yield node


def _set_first(
    context: Workspace, objects: dict[str, str], worker: cst.FunctionDef | None
) -> Iterator[ObjectField]:
    """Yield the places, by what their object is called before the launch, that become the rank."""
    body = worker.body.body if worker is not None else ()
    for object_, inside in objects.items():
        for number, line in enumerate(body):
            first = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            target = _ranked(first, context)
            place = kept_on(target)
            if place is None or place.root != inside:
                continue
            before = [node for earlier in body[:number] for node in nodes(earlier)]
            if not any(
                (isinstance(node, cst.Name) and node.value in (inside, place.word))
                or string_value(node) == place.word
                for node in before
            ):
                yield replace(place, root=object_)


def _ranked(statement: cst.CSTNode | None, context: Workspace) -> cst.BaseExpression | None:
    """Return what `statement` makes the global index."""
    if isinstance(statement, cst.AugAssign) and is_rank_increment(statement, context):
        return statement.target
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        value = statement.value
        is_sum = isinstance(value, cst.BinaryOperation) and added_index(value, context) is not None
        if is_sum or is_index(value, context):
            return statement.targets[0].target
    return None
