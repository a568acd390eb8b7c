"""Gradient accumulation in an inner loop: several backward passes before one step of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.steps.effects import BOTH, Effect
from migrate.reading.steps.loops import Loop, loops
from migrate.syntax.tree import nodes_of

if TYPE_CHECKING:
    from migrate.reading.script import Script


def micro_batches(node: cst.CSTNode, context: Script) -> Loop | None:
    """Return the loop in `node`, or in a function that it calls, that runs one micro-batch per turn.

    In one step with the optimizer's, the loop would be unrolled: the graph grows with the number of
    micro-batches, and each number needs another graph. A loop over losses that are already computed does not
    count.
    """
    callees = context.effects.callees([node])
    for place in (node, *(callee.body for callee in callees)):
        for loop in loops(place):
            accumulates = context.effects.of(loop.body) & BOTH == Effect.BACKWARD
            if accumulates and _runs_a_model(loop):
                return loop
    return None


def _runs_a_model(loop: Loop) -> bool:
    """Whether the loop does more than call `backward` on its elements."""
    calls = [
        call
        for call in nodes_of(loop.body, cst.Call)
        if not (
            isinstance(call.func, cst.Attribute)
            and call.func.attr.value in ("backward", "scale", "append", "item")
        )
    ]
    return bool(calls)
