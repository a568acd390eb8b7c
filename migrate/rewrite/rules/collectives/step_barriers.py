"""Barriers in the middle of a step that wait for the same replicas as the step's own collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.values.collectives import TENSORS, called
from migrate.reading.values.devices import moves

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace


def is_in_step(barrier: cst.Call, context: Workspace) -> bool:
    """Whether `barrier` stands between the work of a step and a collective of the same iteration.

    The collective, or DDP's in the backward pass, waits for the other replicas anyway, and a rendezvous
    there would cut the graph of the step in two. Not where a replica does something alone before it,
    such as writing a file: there the barrier is for the others.
    """
    line = context.parent(context.parent(barrier))
    block = context.parent(line)
    loop = context.parent(block)
    if not isinstance(block, cst.IndentedBlock) or not isinstance(loop, cst.For | cst.While):
        return False
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    at = next(index for index, statement in enumerate(block.body) if statement is line)
    before, after = block.body[:at], block.body[at + 1 :]
    if any(_is_alone(statement, context) for statement in before):
        return False
    if context.effects.is_step_loop(loop) and any(
        context.effects.of(statement) for statement in after
    ):
        return True
    moved = any(True for statement in before for _ in moves(statement, context))
    return moved and _communicates(after, context)


def _is_alone(statement: cst.CSTNode, context: Workspace) -> bool:
    """Whether only some replicas run a part of `statement`."""
    return any(context.guards.asks(branch.test) for branch in context.below(statement, cst.If))


def _communicates(statements: Sequence[cst.CSTNode], context: Workspace) -> bool:
    """Whether the statements make a collective, themselves or in a function of the script."""
    calls = [call for statement in statements for call in context.below(statement, cst.Call)]
    functions = (function for call in calls for function in context.called(call))
    inner = (call for function in functions for call in context.below(function.body, cst.Call))
    return any(called(call, context) in TENSORS for call in (*calls, *inner))
