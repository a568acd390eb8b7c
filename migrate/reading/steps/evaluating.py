"""Code that an evaluation on the accelerator runs for each of its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.steps.effects import Effect
from migrate.reading.steps.unended import is_sampling, without_gradients

if TYPE_CHECKING:
    from migrate.reading.facts import Facts
    from migrate.reading.steps.loops import Loop


def in_evaluation(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is in a loop that runs a model without gradients, and not surely on the host.

    Code before and after the forward counts as well: operations on device tensors there compile, too.
    """
    return evaluating_loop(node, facts) is not None


def evaluating_loop(node: cst.CSTNode, facts: Facts) -> Loop | None:
    """Return the innermost loop around `node` that runs a model without gradients, not surely on the host.

    None if a training loop is nearer: the loop over epochs around it may evaluate as well.
    """
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            return None
        if isinstance(above, cst.For | cst.While) and facts.context.effects.is_step_loop(above):
            return None
        if isinstance(above, cst.For | cst.While) and _evaluates(above, node, facts):
            return above
    return None


def sampling_loop(node: cst.CSTNode, facts: Facts) -> Loop | None:
    """Return the innermost loop around `node` if it samples: it runs a model on its own results."""
    loop = facts.context.loop_around(node)
    return loop if loop is not None and is_sampling(loop, facts) else None


def _evaluates(loop: Loop, node: cst.CSTNode, facts: Facts) -> bool:
    effects = facts.context.effects
    if effects.on_accelerator(loop) is False or effects.on_cpu(loop) == 0:
        return False
    if effects.of(loop.body) != Effect.NONE:
        return False
    return without_gradients(node, facts)
