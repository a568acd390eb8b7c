"""A JAX function whose values are computed again for the gradients, piece by piece, instead of kept.

Computed again as one piece, all values would be there at once a second time, and nothing would be saved. So
the function is traced and cut where the least is alive, as between the blocks of a transformer: kept is what
goes from one piece to the next, and the values of one piece at a time.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax.extend import core

from migrate.parity.sides.jax.wide import held

_CALLS = ("jit", "pjit", "closed_call", "core_call")
_AGAIN = ("checkpoint", "remat", "remat2")
_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general")
# Whose values XLA keeps for the gradients; what is done element by element it makes of these again.
_KEPT = {*_PRODUCTS, *_AGAIN, "scan", "while", "cond", "sort", "top_k", "gather", "scatter"} | {
    "scatter-add", "cumsum", "reduce_window_max", "pallas_call", "custom_vjp_call"
}  # fmt: skip
# Budgets that are tried: all values in one piece, in two, … in so many.
_MOST = 64


@dataclass(frozen=True)
class _Piece:
    """Equations `start` up to `stop`.

    Attributes:
        how: "again": computed again for the gradients; "opened": a call whose own equations take its place;
            "kept": as it is, but that a loop's turns are computed again one by one.
    """

    start: int
    stop: int
    how: Literal["again", "opened", "kept"]


def in_pieces(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, of arrays and pytrees of them, each piece of it under `jax.checkpoint`."""

    def call(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        while any(map(_is_call, closed.jaxpr.eqns)):
            closed = _opened(closed)
        results = _run(closed, jax.tree.leaves(args), _pieces(closed.jaxpr))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


def _opened(closed: Any) -> Any:
    """Return the same equations, with called functions inlined."""
    pieces, start = [], 0
    for is_call, each in itertools.groupby(closed.jaxpr.eqns, _is_call):
        stop = start + len(list(each))
        pieces += (
            [_Piece(at, at + 1, "opened") for at in range(start, stop)]
            if is_call
            else [_Piece(start, stop, "kept")]
        )
        start = stop
    return jax.make_jaxpr(lambda *args: _run(closed, args, pieces))(*closed.in_avals)


def _run(closed: Any, args: Sequence[Any], pieces: Sequence[_Piece]) -> list[Any]:
    jaxpr = closed.jaxpr
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values |= zip(jaxpr.invars, args, strict=True)
    last = _last_uses(jaxpr)

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for piece in pieces:
        taken, outputs, run = _cut(jaxpr, piece, last)
        values |= zip(outputs, run(*map(read, taken)), strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _cut(
    jaxpr: Any, piece: _Piece, last: Mapping[Any, int]
) -> tuple[list[Any], list[Any], Callable[..., list[Any]]]:
    """Return the inputs of a piece, its outputs, and the piece. Its equations keep their lines."""
    equations = jaxpr.eqns[piece.start : piece.stop]
    if piece.how == "opened":
        (call,) = equations
        return call.invars, call.outvars, core.jaxpr_as_fun(held(call)[0])
    if piece.how == "kept":
        equations = [_turn_by_turn(equation) for equation in equations]
    created = dict.fromkeys(variable for equation in equations for variable in equation.outvars)
    read = (variable for equation in equations for variable in equation.invars)
    taken = [
        variable
        for variable in dict.fromkeys(filter(_is_variable, read))
        if variable not in created
    ]
    outputs = [variable for variable in created if last.get(variable, -1) >= piece.stop]
    effects = set[Any]().union(*(equation.effects for equation in equations))
    inside = core.Jaxpr(
        (), taken, outputs, equations, effects, jaxpr.debug_info.with_unknown_names()
    )
    run = core.jaxpr_as_fun(core.ClosedJaxpr(inside, ()))
    return taken, outputs, jax.checkpoint(run) if piece.how == "again" else run


def _turn_by_turn(equation: Any) -> Any:
    """A loop whose turns are each computed again; others as they are."""
    if not _is_loop(equation):
        return equation
    body = equation.params["jaxpr"]
    again = jax.make_jaxpr(jax.checkpoint(core.jaxpr_as_fun(body)))(*body.in_avals)
    return equation.replace(params={**equation.params, "jaxpr": again})


def _pieces(jaxpr: Any) -> list[_Piece]:
    """The cut that keeps the least: what goes over its places, and the largest piece."""
    sizes = [
        sum(map(_bytes, equation.outvars))
        if _KEPT & {equation.primitive.name, *_names(equation)}
        else 0
        for equation in jaxpr.eqns
    ]
    alive = _alive(jaxpr)
    tried = []
    for count in range(1, _MOST + 1):
        pieces = list(_greedy(jaxpr.eqns, sizes, alive, sum(sizes) / count))
        over = sum(alive[piece.start] for piece in pieces)
        again = [sum(sizes[piece.start : piece.stop]) for piece in pieces if piece.how == "again"]
        tried.append((over + max(again, default=0), count, pieces))
    return min(tried)[2]


def _greedy(
    equations: Sequence[Any], sizes: Sequence[int], alive: Sequence[int], budget: float
) -> Iterator[_Piece]:
    """Pieces of at most so many bytes, each up to where the least is alive in its second half."""
    start = 0
    while start < len(equations):
        if _stands_alone(equations[start]):
            yield _Piece(start, start + 1, "kept")
            start += 1
            continue
        inside, stop, ends = 0, start, []
        while stop < len(equations) and not _stands_alone(equations[stop]):
            inside += sizes[stop]
            if inside > budget and stop > start:
                break
            stop += 1
            if inside >= budget / 2:
                ends.append(stop)
        else:
            ends = [stop]
        end = min(reversed(ends or [stop]), key=alive.__getitem__)
        yield _Piece(start, end, "again")
        start = end


def _alive(jaxpr: Any) -> list[int]:
    """Bytes that were made before each equation and are used from it on; arguments do not count."""
    last = _last_uses(jaxpr)
    changes = Counter[int]()
    for number, equation in enumerate(jaxpr.eqns):
        for variable in equation.outvars:
            if (until := last.get(variable, -1)) > number:
                changes[number + 1] += _bytes(variable)
                changes[until + 1] -= _bytes(variable)
    return list(itertools.accumulate(changes[place] for place in range(len(jaxpr.eqns) + 1)))


def _last_uses(jaxpr: Any) -> dict[Any, int]:
    """Map each value to the last equation that uses it. Outputs are used after all equations."""
    last: dict[Any, int] = {}
    for number, equation in enumerate(jaxpr.eqns):
        last |= dict.fromkeys(filter(_is_variable, equation.invars), number)
    return last | dict.fromkeys(filter(_is_variable, jaxpr.outvars), len(jaxpr.eqns))


def _is_variable(atom: Any) -> bool:
    return not isinstance(atom, core.Literal)


def _is_call(equation: Any) -> bool:
    """Whether it calls a function with several products, or a loop, in it: that is cut too."""
    if equation.primitive.name not in _CALLS:
        return False
    inside = Counter(_names(equation))
    return sum(inside[name] for name in _PRODUCTS) > 1 or inside["scan"] > 0


def _stands_alone(equation: Any) -> bool:
    """Whether it is a loop, or computed again by its author already."""
    return equation.primitive.name in _AGAIN or _is_loop(equation)


def _is_loop(equation: Any) -> bool:
    return equation.primitive.name == "scan" and not set(_names(equation)) & set(_AGAIN)


def _names(equation: Any) -> Iterator[str]:
    """Yield the names of the primitives in the functions that the equation holds."""
    for closed in held(equation):
        for inner in closed.jaxpr.eqns:
            yield inner.primitive.name
            yield from _names(inner)


def _bytes(variable: Any) -> int:
    aval = variable.aval
    return math.prod(aval.shape) * aval.dtype.itemsize if hasattr(aval, "shape") else 0
