"""`mp.spawn(…, join=False)` that is joined at once, which a launch does by itself."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


@dataclass(frozen=True, eq=False)
class Joined:
    """The statements that join the processes of a spawn.

    Args:
        chained: the call `.join()` on the spawn itself.
        assign: the assignment of what the spawn returns.
        line: the statement after it that joins.
        spelled: how the script spells what it joins.
    """

    chained: cst.Call | None = None
    assign: cst.Assign | None = None
    line: cst.CSTNode | None = None
    spelled: str = ""


def joined_at_once(call: cst.Call, context: Workspace) -> Joined | None:
    """Return where the spawn `call` is joined: in its own expression, or in the next statement.

    None if a statement is in between, or if the script uses the processes for something else.
    """
    above = context.parent(call)
    if isinstance(above, cst.Attribute):
        outer = context.parent(above)
        if isinstance(outer, cst.Call) and _joins(outer, code(call)):
            in_statement = isinstance(context.parent(outer), cst.Expr)
            return Joined(chained=outer) if in_statement else None
        return None
    if not isinstance(above, cst.Assign) or len(above.targets) != 1:
        return None
    target = above.targets[0].target
    line = context.parent(above)
    block = context.parent(line)
    if not isinstance(target, cst.Name) or not isinstance(block, cst.IndentedBlock | cst.Module):
        return None
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    index = next(i for i, other in enumerate(block.body) if other is line)
    after = block.body[index + 1] if index + 1 < len(block.body) else None
    if after is None or len(context.mentions(target)) != 2:
        return None
    return (
        Joined(assign=above, line=after, spelled=target.value) if _is_join(after, target) else None
    )


def _is_join(line: cst.CSTNode, target: cst.Name) -> bool:
    """Whether `line` is `processes.join()` or `while not processes.join(): pass`."""
    if isinstance(line, cst.While):
        test = line.test
        only_pass = code(line.body).strip() == "pass" and line.orelse is None
        waits = isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not)
        if not isinstance(test, cst.UnaryOperation) or not waits:
            return False
        return only_pass and _joins(test.expression, target.value)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    small = line.body[0]
    return isinstance(small, cst.Expr) and _joins(small.value, target.value)


def _joins(node: cst.BaseExpression, spelled: str) -> bool:
    """Whether `node` calls `.join()`, without a time limit, of what the script spells so."""
    return (
        isinstance(node, cst.Call)
        and not node.args
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "join"
        and code(node.func.value) == spelled
    )
