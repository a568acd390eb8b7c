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
    """Return the loop in `node`, or in a function that it calls, that runs one micro-batch a turn.

    In one step with the optimizer's it would be unrolled: a graph as many times as long, and another one
    for each number of micro-batches. A loop that only goes over losses already computed is none.
    """
    callees = context.effects.callees([node])
    for place in (node, *(callee.body for callee in callees)):
        for loop in loops(place):
            accumulates = context.effects.of(loop.body) & BOTH == Effect.BACKWARD
            if accumulates and _runs_a_model(loop):
                return loop
    return None


def _runs_a_model(loop: Loop) -> bool:
    """Whether the loop does more than to call `backward` on what it goes over."""
    calls = [
        call
        for call in nodes_of(loop.body, cst.Call)
        if not (
            isinstance(call.func, cst.Attribute)
            and call.func.attr.value in ("backward", "scale", "append", "item")
        )
    ]
    return bool(calls)
