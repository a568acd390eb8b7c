"""Loops that may train through code that cannot be followed.

Either a loop passes its optimizer, or its training, to a function without source in the project:
`from engine import backward`, without a file `engine`. Or its source shows only one half of the training, a
backward pass or an optimizer step; the other half is in such a call.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator
from functools import lru_cache

from migrate.catalogue.words import (
    CALLED_MODEL,
    HIDDEN_TRAINING,
    LOADER,
    OPTIMIZER,
    TRAINS_NOTHING,
)
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.effect import BOTH, Effect
from migrate.model.calls.kinds import DeviceValue, External
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Function, ModuleScope, Region, Scope
from migrate.model.calls.training import is_optimizer_value
from migrate.model.objects.asked import is_module
from migrate.model.objects.programs import programs_of

# Packages whose functions are known not to train.
KNOWN = {"torch", "torchvision", "torchaudio", "torch_xla", "shims", "numpy", "builtins"}
CLEARS = "zero_grad"
BY_HAND = (
    "`{}` may train, and no file of the project shows what it does: if one turn of this loop is one "
    "training step, write `# migrate: step` above it, or put the calls that train in "
    "`with torch_xla.step():` by hand; if the function runs many steps, it must end each of them itself"
)


def unfollowed_of(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[int, str]]:
    """Yield the line of each loop of a file that may train through such a function, and what to do."""
    for scope in (top, *top.functions):
        for root in scope.roots:
            for region in _loops(analysis, root):
                call = _trains_unseen(analysis, region)
                if call is None or programs_of(analysis).on_accelerator(scope, region) is False:
                    continue
                assert region.loop is not None
                yield region.loop.lineno, BY_HAND.format(ast.unparse(call.func))


def is_outside(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether a call runs a function of a library of which nothing is known."""
    if analysis.running[call].functions:
        return False
    values = analysis.evaluator.values(call.func, scope)
    names = [value.name for value in values if isinstance(value, External)]
    return bool(names) and not any(map(is_of_known_package, names))


def is_of_known_package(name: str) -> bool:
    """Whether a dotted name is of torch, numpy, Python or another package whose functions are known."""
    root = name.partition(".")[0]
    return root in KNOWN or root in sys.stdlib_module_names


def arguments(call: ast.Call) -> list[ast.expr]:
    """Return all arguments of a call."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _loops(analysis: Analysis, region: Region) -> Iterator[Region]:
    """Yield the loops in `region` that no step loop contains, and that contain none."""
    for inner in region.inner:
        if inner in analysis.step_loops or inner in analysis.captured:
            continue
        deeper = [
            loop for loop in analysis.regions(inner) if loop is not inner and loop.loop is not None
        ]
        if inner.loop is not None and not any(loop in analysis.step_loops for loop in deeper):
            yield from (loop for loop in (inner, *deeper) if loop not in analysis.captured)
        else:
            yield from _loops(analysis, inner)


def _trains_unseen(analysis: Analysis, region: Region) -> ast.Call | None:
    """Return the call of a loop that cannot be followed and may train.

    Its name says that it trains, or it gets an optimizer and nothing else in the loop is known to train. If
    only a name says that the argument is an optimizer, the loop must also clear gradients, run a model, or
    pass the model or the data to the call.
    """
    if any(analysis.effect(call) for part in analysis.regions(region) for call, _ in part.calls):
        return None
    calls = [pair for part in _flat(region) for pair in part.calls]
    unseen = [
        (call, at)
        for call, at in calls
        if not TRAINS_NOTHING.fullmatch(last_part(call.func)) and _is_unseen(call, at, analysis)
    ]
    for call, _ in unseen:
        if HIDDEN_TRAINING.fullmatch(last_part(call.func)):
            return call
    training = programs_of(analysis).training
    if any(not training.isdisjoint(analysis.running[call].functions) for call, _ in calls):
        return None
    trains = any(
        last_part(call.func) == CLEARS or _is_model(call.func, at, analysis) for call, at in calls
    )
    for call, at in unseen:
        passed = arguments(call)
        optimizers = {_is_optimizer(value, at, analysis) for value in passed}
        named = None in optimizers and (
            trains
            or any(
                LOADER.search(last_part(argument)) or _is_model(argument, at, analysis)
                for argument in passed
            )
        )
        if True in optimizers or named:
            return call
    return None


def _flat(region: Region) -> Iterator[Region]:
    """Yield the body of a loop, and of its `with` and similar statements, without inner loops."""
    yield region
    for inner in region.inner:
        if inner.loop is None:
            yield from _flat(inner)


def _is_model(node: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    values = analysis.evaluator.values(node, scope)
    unknown = all(isinstance(value, DeviceValue) for value in values)
    named = CALLED_MODEL.fullmatch(last_part(node)) is not None
    return is_module(node, scope, analysis) or (unknown and named)


def _is_unseen(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether a call runs a function without source: from a library or of unknown origin."""
    if analysis.running[call].functions or is_module(call.func, scope, analysis):
        return False
    if isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id):
        return False
    values = analysis.evaluator.values(call.func, scope)
    if all(isinstance(value, DeviceValue) for value in values):
        return (
            isinstance(call.func, ast.Name)
            or HIDDEN_TRAINING.fullmatch(last_part(call.func)) is not None
        )
    return is_outside(call, scope, analysis)


def _is_optimizer(node: ast.expr, scope: Scope, analysis: Analysis) -> bool | None:
    """Whether `node` is an optimizer; None if only its name says so."""
    values = analysis.evaluator.values(node, scope)
    known = {is_optimizer_value(value, analysis.evaluator) for value in values} - {None}
    if known:
        return True in known
    return None if OPTIMIZER.fullmatch(last_part(node)) else False


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
