"""Statements between two calls that end the graph on all replicas, with no collective between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from migrate.catalogue.words import SYNCS
from migrate.check.rules.ranks.guarded_collective import COLLECTIVE
from migrate.check.rules.ranks.parting.beside import named_call
from migrate.reading.facts import Facts
from migrate.reading.halves.made_arrays import is_container
from migrate.syntax.tree import nodes_of
from migrate.syntax.walk import children

LOOPS = cst.For | cst.While


def is_cut_out(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the graph of `node` has no collective: it ends above and below, on all replicas.

    The statement around `node`, or a loop or test around that, stands between two lines that end the graph in
    one block. A line in an `if`, a `def` or a loop does not count for what is outside of it.
    """
    statement = node
    for block in facts.context.ancestors(node):
        if isinstance(block, cst.IndentedBlock | cst.Module) and _is_between(
            statement, block.body, facts
        ):
            return True
        if isinstance(block, cst.FunctionDef):
            break
        statement = block
    return False


def is_used_cut_out(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is cut out, or selects from a list for a name of which each use is cut out."""
    if is_cut_out(node, facts):
        return True
    line = facts.context.statement_around(node)
    assigned = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    if not isinstance(assigned, cst.Assign) or len(assigned.targets) != 1:
        return False
    target = assigned.targets[0].target
    is_selection = (
        assigned.value is node and is_container(node.value, facts)
        if isinstance(node, cst.Subscript)
        else any(part is node for part in nodes_of(assigned.value, cst.CompIf))
    )
    if not isinstance(target, cst.Name) or not is_selection:
        return False
    uses = [
        use
        for use in facts.context.references(target.value)
        if use is not target
        and facts.context.function_around(use) is facts.context.function_around(target)
    ]
    return bool(uses) and all(is_cut_out(use, facts) for use in uses)


def _is_between(statement: cst.CSTNode, body: Sequence[cst.CSTNode], facts: Facts) -> bool:
    at = next((index for index, other in enumerate(body) if other is statement), None)
    if at is None:
        return False
    ends = [
        index for index, other in enumerate(body) if named_call(other, SYNCS, facts) is not None
    ]
    above = max((index for index in ends if index < at), default=None)
    below = min((index for index in ends if index > at), default=None)
    if above is None or below is None:
        return False
    between = body[above + 1 : below]
    return not any(_meets(part, facts) or any(_leaving(part)) for part in between)


def _meets(statement: cst.CSTNode, facts: Facts) -> bool:
    return any(
        facts.names.of(call.func) in COLLECTIVE or facts.context.effects.meets(call)
        for call in facts.below(statement, cst.Call)
    )


def _leaving(node: cst.CSTNode, in_loop: bool = False) -> Iterator[cst.CSTNode]:
    """Yield the statements by which a part of `node` goes past the line below `node`."""
    if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
        return
    if isinstance(node, cst.Return) or (isinstance(node, cst.Break | cst.Continue) and not in_loop):
        yield node
    for child in children(node):
        yield from _leaving(child, in_loop or isinstance(node, LOOPS))
