"""Loops that may train through a function that the source does not show.

`from engine import backward`, where no file of the project is `engine`: the loop runs the model, and hands
its optimizer to what cannot be followed.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator

from migrate.reading.accelerators.asked import is_module
from migrate.reading.accelerators.programs import programs_of
from migrate.reading.calls.analysis import Analysis
from migrate.reading.calls.kinds import Device, External
from migrate.reading.calls.scopes import ModuleScope, Region, Scope
from migrate.reading.calls.training import is_optimizer_value
from migrate.reading.replicas.rank_tests import last_part
from migrate.reading.values.words import (
    CALLED_MODEL,
    HIDDEN_TRAINING,
    LOADER,
    OPTIMIZER,
    TRAINS_NOTHING,
)

# What they do is known.
KNOWN = {"torch", "torchvision", "torchaudio", "torch_xla", "shims", "numpy", "builtins"}
CLEARS = "zero_grad"


def unfollowed_of(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[int, str]]:
    """Yield the line of each such loop of a file, and what to do about it."""
    for scope in (top, *top.functions):
        for root in scope.roots:
            for region in _loops(analysis, root):
                call = _trains_unseen(analysis, region)
                if call is None or programs_of(analysis).on_accelerator(scope, region) is False:
                    continue
                assert region.loop is not None
                yield region.loop.lineno, _by_hand(call)


def _by_hand(call: ast.Call) -> str:
    return (
        f"`{ast.unparse(call.func)}` may train, and no file of the project shows what it does: if one turn "
        "of this loop is one training step, write `# migrate: step` above it, or put the calls that train "
        "in `with torch_xla.step():` by hand"
    )


def _loops(analysis: Analysis, region: Region) -> Iterator[Region]:
    """Yield the innermost loops in `region` that no step loop holds, and that hold none."""
    for inner in region.inner:
        if inner in analysis.step_loops or inner in analysis.captured:
            continue
        deeper = [
            one for one in analysis.regions(inner) if one is not inner and one.loop is not None
        ]
        if inner.loop is not None and not any(one in analysis.step_loops for one in deeper):
            yield from (one for one in (inner, *deeper) if one not in analysis.captured)
        else:
            yield from _loops(analysis, inner)


def _trains_unseen(analysis: Analysis, region: Region) -> ast.Call | None:
    """Return the call of a loop that is handed an optimizer and cannot be followed, where the loop may train.

    The loop clears gradients or runs a model, or hands the model or the data on with the optimizer, and
    nothing in it is seen to run a backward pass or a step.
    """
    calls = [pair for one in _flat(region) for pair in one.calls]
    if any(analysis.effect(call) for call, _ in calls):
        return None
    trains = any(
        last_part(call.func) == CLEARS or _is_model(call.func, at, analysis) for call, at in calls
    )
    for call, at in calls:
        if HIDDEN_TRAINING.fullmatch(last_part(call.func)) and _is_unknown(call, at, analysis):
            return call
        if not _is_unknown(call, at, analysis) or TRAINS_NOTHING.fullmatch(last_part(call.func)):
            continue
        given = (*call.args, *(keyword.value for keyword in call.keywords))
        if any(_is_optimizer(value, at, analysis) for value in given) and (
            trains
            or any(LOADER.search(last_part(one)) or _is_model(one, at, analysis) for one in given)
        ):
            return call
    return None


def _flat(region: Region) -> Iterator[Region]:
    """Yield the body of a loop, and of the `with` and the like in it, without the loops in it."""
    yield region
    for inner in region.inner:
        if inner.loop is None:
            yield from _flat(inner)


def _is_model(node: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    values = analysis.evaluator.values(node, scope)
    unknown = all(isinstance(value, Device) for value in values)
    named = CALLED_MODEL.fullmatch(last_part(node)) is not None
    return is_module(node, scope, analysis) or (unknown and named)


def _is_unknown(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether a call runs a function that the source does not show, and that is of no known library."""
    if analysis.running[call].functions or is_module(call.func, scope, analysis):
        return False
    if isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id):
        return False
    values = analysis.evaluator.values(call.func, scope)
    if all(isinstance(value, Device) for value in values):
        return (
            isinstance(call.func, ast.Name)
            or HIDDEN_TRAINING.fullmatch(last_part(call.func)) is not None
        )
    for value in values:
        if not isinstance(value, External):
            return False
        root = value.name.partition(".")[0]
        if root in KNOWN or root in sys.stdlib_module_names:
            return False
    return True


def _is_optimizer(node: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    values = analysis.evaluator.values(node, scope)
    known = {is_optimizer_value(value, analysis.evaluator) for value in values} - {None}
    if known:
        return True in known
    return OPTIMIZER.fullmatch(last_part(node)) is not None
