"""Steps that run before training begins: they make no loop a step loop.

A program warms up before it captures a CUDA graph, or runs one step on the largest batch to allocate all
memory before training begins. Such a step is no step of the loop around it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Protocol

from migrate.model.calls.effect import BOTH, Effect
from migrate.model.calls.kinds import External
from migrate.model.calls.order import closure
from migrate.model.calls.scopes import Function, Loop, Region
from migrate.model.calls.training import Running
from migrate.model.calls.values import Evaluator
from migrate.syntax.walk_ast import walk

GRAPH = "torch.cuda.graph"


class Analyzed(Protocol):
    """Part of the project's analysis that this module uses."""

    step_loops: set[Region]
    captured: set[Region]
    running: dict[ast.Call, Running]
    evaluator: Evaluator

    @property
    def roots(self) -> list[Region]:
        """Regions that run on their own."""

    def regions(self, region: Region) -> Iterator[Region]:
        """Yield `region` and the loops in it."""


def before_graphs(analysis: Analyzed) -> set[Region]:
    """Return the loops over `range` above the capture of a CUDA graph, in the same body."""
    warming: set[Region] = set()
    for root in analysis.roots:
        regions = list(analysis.regions(root))
        lines = [line for region in regions for line in _captures(region, analysis)]
        for region in regions if lines else ():
            if _over_range(region.loop) and _end(region.loop) < max(lines):
                warming.add(region)
    return warming


def _end(loop: Loop | None) -> int:
    return 0 if loop is None else loop.end_lineno or loop.lineno


def _captures(region: Region, analysis: Analyzed) -> Iterator[int]:
    for call, scope in region.entered:
        if b"CUDAGraph" in scope.module.data:
            values = analysis.evaluator.values(call.func, scope)
            if any(isinstance(value, External) and value.name == GRAPH for value in values):
                yield call.lineno


def _over_range(loop: Loop | None) -> bool:
    match loop:
        case ast.For(iter=ast.Call(func=ast.Name(id="range" | "trange"))):
            return True
    return False


def around_training(analysis: Analyzed) -> set[Region]:
    """Return the loops that train only through code that a loop inside of them runs for every step.

    `for epoch in …: trainer.optimize(loader)`, where `optimize` calls `iterate` once for the largest batch
    and then runs the loop whose every turn calls `iterate`.
    """
    scopes = set()
    for region in analysis.step_loops:
        if region.marked:
            continue
        inner, ran = _inside(region, analysis)
        if inner and ran and _effect(region, analysis, ran, set()) != BOTH:
            scopes.add(region)
    return scopes


def _inside(region: Region, analysis: Analyzed) -> tuple[set[Region], set[Function]]:
    """Return the step loops in the functions that `region` runs, and the functions that their turns run."""
    inner: set[Region] = set()
    for function in _reached(_functions(region, analysis), analysis):
        inner |= {r for r in analysis.regions(function.region) if r in analysis.step_loops}
    inner.discard(region)
    direct = {function for loop in inner for function in _functions(loop, analysis)}
    return inner, {f for f in _reached(direct, analysis) if not takes_loss(f, analysis)}


def takes_loss(function: Function, analysis: Analyzed) -> bool:
    """Whether `function` runs the backward pass of a loss from its callers: no step of its own.

    `trainer.backward(loss)` of an inner loop is a part of a step. It is also a part of another step if the
    loop around calls it too.
    """
    names = {*function.all_parameters} - {"self", "cls"}
    return any(
        Effect.BACKWARD in analysis.running[call].effect and not names.isdisjoint(_losses(call))
        for region in analysis.regions(function.region)
        for call, _ in region.calls
    )


def _losses(call: ast.Call) -> set[str]:
    """Return the names of the loss in `loss.backward()`, `scaler.scale(loss).backward()`, `scaler(loss, o)`.

    A loss computed in the expression has no name: `model(x).mean().backward()`.
    """
    match call:
        case ast.Call(func=ast.Attribute(value=loss, attr="backward")):
            pass
        case ast.Call(args=[loss, *_]):
            pass
        case _:
            return set()
    match loss:
        case ast.Call(func=ast.Attribute(attr="scale"), args=[scaled]):
            loss = scaled
    parts = list(walk(loss))
    if any(isinstance(part, ast.Call) for part in parts):
        return set()
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _functions(region: Region, analysis: Analyzed) -> set[Function]:
    """Return the functions with an effect that `region` calls, inner loops included."""
    return {
        function
        for part in analysis.regions(region)
        for call, _ in part.calls
        for function in analysis.running[call].functions
    }


def _reached(start: set[Function], analysis: Analyzed) -> set[Function]:
    return set(closure(start, lambda function: _functions(function.region, analysis)))


def _effect(
    region: Region, analysis: Analyzed, without: set[Function], seen: set[Function]
) -> Effect:
    """Return the effects of `region` without those of the functions `without`."""
    effect = Effect.NONE
    for call, _ in region.calls:
        ran = analysis.running[call]
        effect |= ran.effect
        for function in ran.functions:
            if function not in without and function not in seen:
                seen.add(function)
                effect |= _effect(function.region, analysis, without, seen)
    for inner in region.inner:
        if inner not in analysis.step_loops and inner not in analysis.captured:
            effect |= _effect(inner, analysis, without, seen)
    return effect
