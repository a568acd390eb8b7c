"""Loops whose source shows only one half of the training: a backward pass, or an optimizer step.

The other half is in a call that cannot be followed, so such a loop may train.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.effect import BOTH, Effect
from migrate.model.calls.scopes import Function, ModuleScope, Region, Scope
from migrate.model.objects.programs import programs_of

BACKWARD = (
    "this loop runs a backward pass, and the source does not show where the optimizer's step is: if one "
    "turn of it is one training step, write `# migrate: step` above it; if it only computes gradients, "
    "put the turn in `with torch_xla.step():` by hand"
)
STEP = (
    "this loop runs an optimizer's step, and the source does not show where the backward pass is: if one "
    "turn of it is one training step, write `# migrate: step` above it, or put the step in "
    "`with torch_xla.step():` by hand"
)


def halves_of(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[int, str]]:
    """Yield the line of each such loop of a file, and what to do about it."""
    for scope in (top, *top.functions):
        if scope in _trained(analysis):
            continue
        whole = Effect.NONE
        for root in scope.roots:
            whole |= _effect(analysis, root)
        if whole in (Effect.BACKWARD, Effect.STEP):
            for root in scope.roots:
                for region in _outermost(analysis, root):
                    if programs_of(analysis).on_accelerator(scope, region) is not False:
                        assert region.loop is not None
                        yield region.loop.lineno, BACKWARD if whole is Effect.BACKWARD else STEP


def _outermost(analysis: Analysis, region: Region) -> Iterator[Region]:
    """Yield the loops in `region` with an effect, not those in them, nor any in a step loop."""
    for inner in region.inner:
        if inner in analysis.step_loops or inner in analysis.captured:
            continue
        if inner.loop is not None and _effect(analysis, inner):
            if not _has_steps(analysis, inner):
                yield inner
        else:
            yield from _outermost(analysis, inner)


def _has_steps(analysis: Analysis, region: Region) -> bool:
    """Whether a loop calls code with training loops of its own, such as a search over settings."""
    training = programs_of(analysis).training
    return any(
        not training.isdisjoint(analysis.running[call].functions)
        for inner in analysis.regions(region)
        for call, _ in inner.calls
    )


def _effect(analysis: Analysis, region: Region) -> Effect:
    """Return the effects of a body that no step loop in it consumes."""
    if region in analysis.step_loops or region in analysis.captured:
        return Effect.NONE
    effect = Effect.NONE
    for call, _ in region.calls:
        effect |= analysis.effect(call)
    for inner in region.inner:
        if effect == BOTH:
            break
        effect |= _effect(analysis, inner)
    return effect


@lru_cache(maxsize=2)
def _trained(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions that step loops run, and their callers: everything is known about them."""
    programs = programs_of(analysis)
    starts = {scope for region in analysis.step_loops for scope in programs.run_by(region)}
    return frozenset(scope for scope in programs.run_from(starts) if isinstance(scope, Function))
