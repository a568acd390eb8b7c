"""Steps in functions that steps of other functions call: the inner steps keep their blocks.

`with torch_xla.step():` around `train_step(…)`, in which a loop has steps, would be a step in a step.
The block is put into `train_step`, below that loop, in any file. A `train_step` of a subclass in another file
gets a block as that of its base does.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.effect import BOTH
from migrate.model.calls.scopes import Function, Region, Scope
from migrate.model.objects.programs import programs_of


@dataclass(frozen=True)
class Nested:
    """Functions that are whole steps and contain steps of their own.

    Args:
        functions: the functions whose bodies get the blocks.
        calls: the calls that run them, around which no block goes.
    """

    functions: frozenset[Function]
    calls: frozenset[ast.Call]


@lru_cache(maxsize=2)
def nested_of(analysis: Analysis) -> Nested:
    """Return the functions of a project that contain steps and run as a part of a step.

    A function with a single call in its own file is left out: the rule for steps enters it anyway.
    """
    training = programs_of(analysis).training
    functions: set[Function] = set()
    calls: set[ast.Call] = set()
    waiting: list[Region] = [
        loop for loop in analysis.step_loops if _is_accelerated(loop, analysis)
    ]
    seen: set[Region] = set(waiting)
    while waiting:
        region = waiting.pop()
        # A `with`, or a loop in which only a part of a step runs.
        waiting += [inner for inner in region.inner if inner not in analysis.step_loops]
        for call, scope in region.calls:
            ran = analysis.running[call].functions
            if analysis.effect(call) != BOTH:
                continue
            whole = [function for function in ran if analysis.effects.get(function) == BOTH]
            known = bool(whole) and functions.issuperset(whole)  # super().train_step(batch)
            overridden = _is_overridden_elsewhere(whole, scope)
            if training.isdisjoint(ran) and not known and not overridden:
                continue
            if len(whole) > 1 or any(function.module is not scope.module for function in whole):
                functions.update(whole)
                calls.add(call)
            new = [function.region for function in whole if function.region not in seen]
            seen.update(new)
            waiting += new
    return Nested(frozenset(functions), frozenset(calls))


def _is_overridden_elsewhere(whole: list[Function], scope: Scope) -> bool:
    """Whether a call runs a method of its own file, or one that overrides the method in another file."""
    here = [function.module is scope.module for function in whole]
    return any(here) and not all(here)


def _is_accelerated(loop: Region, analysis: Analysis) -> bool:
    """Whether the step loop `loop` trains on an accelerator, or a comment marks it."""
    scopes = {scope for region in analysis.regions(loop) for _, scope in region.calls}
    programs = programs_of(analysis)
    return loop.marked or any(programs.on_accelerator(scope, loop) for scope in scopes)
