"""Taking statements out of a branch that only one replica runs, with what they need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.replicas.first_replica import same_everywhere
from migrate.reading.tree.tree import code, is_docstring, nodes_of, targets, used

if TYPE_CHECKING:
    from migrate.reading.script import Script

# Calls that change nothing, by the last part of their name.
PURE_CALLS = frozenset(
    {
        "abs",
        "asdict",
        "bool",
        "dict",
        "dirname",
        "float",
        "format",
        "get",
        "getattr",
        "hasattr",
        "int",
        "isinstance",
        "items",
        "join",
        "joinpath",
        "len",
        "list",
        "lower",
        "max",
        "min",
        "Path",
        "round",
        "state_dict",
        "str",
        "tuple",
        "unwrap_model",
        "vars",
        "with_suffix",
        "zfill",
    }
)


def lifted(
    body: Sequence[cst.BaseStatement],
    wanted: Callable[[cst.BaseStatement], bool],
    context: Script,
    besides: Collection[cst.CSTNode] = (),
) -> list[cst.BaseStatement] | None:
    """Return the statements of `body` that go out: the wanted ones and what computes their arguments.

    None where that cannot be: an argument is computed by something with side effects.

    Args:
        body: the statements of a branch.
        wanted: whether a statement is to go out.
        context: the script.
        besides: expressions in the wanted statements that nothing has to go out for.
    """
    out: list[cst.BaseStatement] = []
    needed: set[str] = set()
    for statement in reversed(body):
        if wanted(statement):
            out.append(statement)
            needed |= _names_used(statement, besides)
            continue
        assigned = _names_assigned(statement)
        if not assigned & needed:
            continue
        if not is_pure(statement, context):
            return None
        out.append(statement)
        needed |= _names_used(statement)
    return out[::-1]


def is_pure(statement: cst.CSTNode, context: Script) -> bool:
    """Whether `statement` does nothing but assign values to names, or entries of what they hold."""
    if isinstance(statement, cst.If):
        branches: list[cst.CSTNode] = [*statement.body.body]
        if isinstance(statement.orelse, cst.Else):
            branches.extend(statement.orelse.body.body)
        elif statement.orelse is not None:
            return False
        return same_everywhere(statement.test) and all(is_pure(s, context) for s in branches)
    if isinstance(statement, cst.SimpleStatementLine):
        return is_docstring(statement) or all(is_pure(small, context) for small in statement.body)
    if isinstance(statement, cst.Pass):
        return True
    if not isinstance(statement, cst.Assign | cst.AnnAssign):
        return False
    places = all(
        isinstance(target.value if isinstance(target, cst.Subscript) else target, cst.Name)
        for target in targets(statement)
    )
    return places and all(_last(call.func) in PURE_CALLS for call in nodes_of(statement, cst.Call))


def _last(function: cst.BaseExpression) -> str:
    return function.attr.value if isinstance(function, cst.Attribute) else code(function)


def _names_used(statement: cst.CSTNode, besides: Collection[cst.CSTNode] = ()) -> set[str]:
    return {code(name).partition(".")[0] for name in used(statement, besides)}


def _names_assigned(statement: cst.CSTNode) -> set[str]:
    """Return the names that `statement` assigns, or into which it puts something."""
    found = set()
    for target in targets(statement):
        while isinstance(target, cst.Subscript | cst.Attribute):
            target = target.value
        if isinstance(target, cst.Name):
            found.add(target.value)
    for call in nodes_of(statement, cst.Call):  # `state.update(…)`
        method = call.func if isinstance(call.func, cst.Attribute) else None
        if method is None or not isinstance(method.value, cst.Name):
            continue
        if method.attr.value in ("update", "append", "setdefault", "extend"):
            found.add(method.value.value)
    return found


MARK = "# the rewrite moves this statement"


def marked(statement: cst.BaseStatement) -> cst.BaseStatement:
    """Return `statement` with a mark, by which `split` finds it when all edits in it are made."""
    mark = cst.EmptyLine(comment=cst.Comment(MARK))
    return statement.with_changes(leading_lines=[*_lines(statement), mark])


def split(
    body: Sequence[cst.BaseStatement],
    keeps: Callable[[list[cst.BaseStatement]], cst.BaseStatement],
    *,
    marked_stay: bool = False,
) -> list[cst.BaseStatement]:
    """Return `body` with its runs of unmarked statements put into what `keeps` makes of each.

    Args:
        body: statements, those that go out being marked.
        keeps: makes the guarded statement of a run.
        marked_stay: the marked statements are those that stay guarded.
    """
    result: list[cst.BaseStatement] = []
    run: list[cst.BaseStatement] = []
    for statement in body:
        lines = _lines(statement)
        kept = [line for line in lines if line.comment is None or line.comment.value != MARK]
        is_marked = len(kept) != len(lines)
        if is_marked == marked_stay:
            run.append(statement.with_changes(leading_lines=kept) if is_marked else statement)
            continue
        if run:
            result.append(keeps(run))
            run = []
        result.append(statement.with_changes(leading_lines=kept) if is_marked else statement)
    if run:
        result.append(keeps(run))
    return result


def _lines(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    return list(getattr(statement, "leading_lines", ()))
