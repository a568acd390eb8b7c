"""Move statements, with the values they need, out of a branch that only one replica runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import libcst as cst

from migrate.model.pure import is_pure
from migrate.syntax.tree import code, nodes_of, targets, used


def lifted(
    body: Sequence[cst.BaseStatement],
    wanted: Callable[[cst.BaseStatement], bool],
    besides: Collection[cst.CSTNode] = (),
) -> list[cst.BaseStatement] | None:
    """Return the statements of `body` to move out: the wanted ones and those that compute their arguments.

    None if an argument is computed with side effects.

    Args:
        body: the statements of a branch.
        wanted: whether a statement is to be moved.
        besides: expressions in the wanted statements that need no other statement.
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
        if not is_pure(statement):
            return None
        out.append(statement)
        needed |= _names_used(statement)
    return out[::-1]


def _names_used(statement: cst.CSTNode, besides: Collection[cst.CSTNode] = ()) -> set[str]:
    return {code(name).partition(".")[0] for name in used(statement, besides)}


def _names_assigned(statement: cst.CSTNode) -> set[str]:
    """Return the names that `statement` assigns, or whose object it changes."""
    names = set()
    for target in targets(statement):
        while isinstance(target, cst.Subscript | cst.Attribute):
            target = target.value
        if isinstance(target, cst.Name):
            names.add(target.value)
    for call in nodes_of(statement, cst.Call):  # `state.update(…)`
        method = call.func if isinstance(call.func, cst.Attribute) else None
        if method is None or not isinstance(method.value, cst.Name):
            continue
        if method.attr.value in ("update", "append", "setdefault", "extend"):
            names.add(method.value.value)
    return names


MARK = "# the rewrite moves this statement"


def marked(statement: cst.BaseStatement) -> cst.BaseStatement:
    """Return `statement` with a mark, by which `split` finds it after all edits."""
    mark = cst.EmptyLine(comment=cst.Comment(MARK))
    return statement.with_changes(leading_lines=[*_lines(statement), mark])


def split(
    body: Sequence[cst.BaseStatement],
    keeps: Callable[[list[cst.BaseStatement]], cst.BaseStatement],
    *,
    marked_stay: bool = False,
) -> list[cst.BaseStatement]:
    """Return `body` with each run of unmarked statements in a guarded statement.

    Args:
        body: statements. The statements to move out are marked.
        keeps: makes the guarded statement for a run.
        marked_stay: whether the marked statements stay guarded, and the others move out.
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
