"""Loops that start a process for each rank, and loops that wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from migrate.syntax.tree import code, elements, keyword, nodes, nodes_of

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed


@dataclass(frozen=True)
class ProcessLoop:
    """Loop of the form `for rank in range(count): Process(target=target, args=(rank, …)).start()`.

    Attributes:
        loop: the loop.
        call: the construction of the process.
        target, args: the function and arguments of the process.
        count: the argument of `range`.
        removed: the statements that keep the processes and wait for them.
    """

    loop: cst.For
    call: cst.Call
    target: cst.Arg
    args: cst.Arg
    count: cst.Arg
    removed: tuple[cst.BaseStatement, ...]

    def elements(self) -> list[cst.BaseElement]:
        """Return the arguments of the process, the rank first."""
        return elements(self.args)


def process_loop(call: cst.Call, context: Parsed) -> ProcessLoop | None:
    """Return the loop that starts the processes of `call`, if it does nothing else."""
    loop = next((a for a in context.ancestors(call) if isinstance(a, cst.For)), None)
    if loop is None or loop.orelse is not None or not isinstance(loop.target, cst.Name):
        return None
    count = _range(loop.iter)
    target, args = keyword(call, "target"), keyword(call, "args")
    if count is None or target is None or args is None or len(call.args) != 2:
        return None
    passed = elements(args)
    if not passed or code(passed[0].value) != loop.target.value:
        return None
    if any(loop.target.value in _names(element) for element in passed[1:]):
        return None
    kept = _only_starts(loop.body, call)
    if kept is None:
        return None
    block = context.parent(loop)
    if not isinstance(block, cst.IndentedBlock | cst.Module):
        return None
    removed = _bookkeeping(block.body, loop, kept)
    return None if removed is None else ProcessLoop(loop, call, target, args, count, removed)


def _range(node: cst.BaseExpression) -> cst.Arg | None:
    is_range = isinstance(node, cst.Call) and code(node.func) == "range" and len(node.args) == 1
    return node.args[0] if is_range and isinstance(node, cst.Call) else None


def _names(root: cst.CSTNode) -> set[str]:
    return {name.value for name in nodes_of(root, cst.Name)}


def _only_starts(body: cst.BaseSuite, call: cst.Call) -> str | None:
    """Return the list that keeps the processes ("" for none); None if the loop does more."""
    lines = [code(statement) for statement in body.body]
    first = lines[0] if lines else ""
    if lines == [f"{code(call)}.start()"]:
        return ""
    if not first.endswith(f" = {code(call)}"):
        return None
    process = first.split(" = ")[0]
    kept = ""
    for line in lines[1:]:
        if line.endswith(f".append({process})"):
            kept = line.split(".append(")[0]
        elif line not in (f"{process}.start()", f"{process}.daemon = True"):
            return None
    return kept if f"{process}.start()" in lines else None


def _bookkeeping(
    block: Sequence[cst.BaseStatement], loop: cst.For, kept: str
) -> tuple[cst.BaseStatement, ...] | None:
    """Return the statements about the list `kept`; None if they do more than keep and join."""
    if not kept:
        return ()
    statements = []
    for statement in block:
        if statement is loop or kept not in _names(statement):
            continue
        text = code(statement)
        if text == f"{kept} = []" or _joins(statement, kept):
            statements.append(statement)
        else:
            return None
    return tuple(statements)


def _joins(statement: cst.BaseStatement, kept: str) -> bool:
    """Whether `statement` is `for p in processes: p.join()`."""
    if not isinstance(statement, cst.For) or code(statement.iter) != kept:
        return False
    lines = [code(line) for line in statement.body.body]
    return lines == [f"{code(statement.target)}.join()"]


def holds(root: cst.CSTNode, node: cst.CSTNode) -> bool:
    """Whether `node` is at or below `root`."""
    return any(inner is node for inner in nodes(root))
