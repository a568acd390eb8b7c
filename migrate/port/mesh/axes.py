"""Axes of a traced JAX function that are the same axis.

Two axes are the same if a device that holds a part of one needs the same part of the other: both operands of
a sum, the contracted axes of a product, an axis and the outermost of the axes that a reshape divides it
into. What an axis goes through is noted with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.extend import core

from migrate.parity.sides.jax.wide import held

Dims = tuple[int, ...]


@dataclass
class SharedAxis:
    """An axis that many arrays share.

    Attributes:
        sizes: its size in each of them, where all parts of it are whole.
        weights: path and place of each weight that has it.
        columns: weights whose product writes it.
        rows: weights whose product sums over it.
        experts: weights that have one matrix for each index of it.
        tables: weights that are looked up along it.
        looked_up: whether these lookups are at integers from the inputs.
        channels: whether a convolution mixes it.
        heads: whether products without weights have one matrix for each index of it.
        reductions: number of sums, maxima and products without weights over it.
        merged: whether it becomes the inner part of another axis.
        broken: whether an operator needs all of it on one device, other than by a sum.
        is_input: whether an input of the model has it.
        is_output: whether an output of the model has it.
    """

    sizes: set[int] = field(default_factory=set)
    weights: set[tuple[str, int]] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    experts: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    looked_up: bool = False
    channels: bool = False
    heads: bool = False
    reductions: int = 0
    merged: bool = False
    broken: bool = False
    is_input: bool = False
    is_output: bool = False

    def join(self, other: SharedAxis) -> None:
        """Add what is known of the same axis in other arrays."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, mine + value if name == "reductions" else mine | value)


@dataclass(frozen=True)
class Traced:
    """The axes of a function.

    Attributes:
        axes: number → axis.
        weights: path → its axes.
        wholes: pairs of axes: the first is split into pieces, or counts pieces, that have the second.
    """

    axes: Mapping[int, SharedAxis]
    weights: Mapping[str, Dims]
    wholes: frozenset[tuple[int, int]]


def trace_axes(closed: Any, weights: Sequence[str], inputs: int) -> Traced:
    """The axes of a traced function whose first arguments are weights, with these paths, and then inputs."""
    walk = _Walk()
    jaxpr = closed.jaxpr
    arguments = [walk.fresh(variable.aval.shape) for variable in jaxpr.invars]
    origins: list[str] = [*weights, *[""] * inputs]
    taints = [False] * len(weights) + [
        not np.issubdtype(variable.aval.dtype, np.floating)
        for variable in jaxpr.invars[len(weights) :]
    ]
    for path, dims in zip(weights, arguments, strict=False):
        for place, dim in enumerate(dims):
            walk.axis(dim).weights.add((path, place))
    for dims in arguments[len(weights) :]:
        for dim in dims:
            walk.axis(dim).is_input = True
    consts = [_Value(walk.fresh(variable.aval.shape)) for variable in jaxpr.constvars]
    values = [
        _Value(dims, origin, taint)
        for dims, origin, taint in zip(arguments, origins, taints, strict=True)
    ]
    for result in walk.run(jaxpr, consts, values):
        for dim in result.dims:
            walk.axis(dim).is_output = True
    axes = {root: walk.known[root] for root in set(map(walk.root, range(len(walk.above))))}
    dims_by_weight = {
        path: tuple(map(walk.root, dims)) for path, dims in zip(weights, arguments, strict=False)
    }
    wholes = {(walk.root(whole), walk.root(piece)) for whole, piece in walk.wholes}
    return Traced(axes, dims_by_weight, frozenset(pair for pair in wholes if pair[0] != pair[1]))


@dataclass(frozen=True)
class _Value:
    """An array.

    Attributes:
        dims: its axes.
        weight: path of the weight that it is, perhaps with its axes in another order; "" if it is none.
        taint: whether it follows from integers among the inputs.
        repeated: whether each step of a loop uses all of it.
    """

    dims: Dims
    weight: str = ""
    taint: bool = False
    repeated: bool = False


# The only operators on a weight after which it still is that weight.
_SAME = ("convert_element_type", "transpose", "reshape", "copy", "squeeze", "stop_gradient")
_WHOLE = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "rev", "sort", "fft", "top_k")
_REDUCED = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")


class _Walk:
    def __init__(self) -> None:
        self.above: list[int] = []
        self.known: dict[int, SharedAxis] = {}
        self.wholes: set[tuple[int, int]] = set()

    # Axes.

    def fresh(self, shape: Sequence[int]) -> Dims:
        first = len(self.above)
        for number, size in enumerate(shape, first):
            self.above.append(number)
            self.known[number] = SharedAxis({int(size)})
        return tuple(range(first, first + len(shape)))

    def root(self, dim: int) -> int:
        while self.above[dim] != dim:
            self.above[dim] = self.above[self.above[dim]]
            dim = self.above[dim]
        return dim

    def axis(self, dim: int) -> SharedAxis:
        return self.known[self.root(dim)]

    def same(self, a: int, b: int) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self.above[b] = a
            self.known[a].join(self.known.pop(b))

    def break_(self, *dims: int) -> None:
        for dim in dims:
            self.axis(dim).broken = True

    # Equations.

    def run(self, jaxpr: Any, consts: Sequence[_Value], args: Sequence[_Value]) -> list[_Value]:
        values: dict[Any, _Value] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= zip(jaxpr.invars, args, strict=True)
        slices: dict[tuple[Any, int], list[tuple[int, int, int]]] = defaultdict(list)

        def read(atom: Any) -> _Value:
            if isinstance(atom, core.Literal):
                return _Value(self.fresh(np.shape(atom.val)))
            return values[atom]

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            results = self._equation(equation, operands, slices)
            values |= zip(equation.outvars, results, strict=True)
        for (atom, place), pieces in slices.items():
            self._pieces(values[atom].dims[place], atom.aval.shape[place], pieces)
        return [read(atom) for atom in jaxpr.outvars]

    def _pieces(self, whole: int, size: int, pieces: list[tuple[int, int, int]]) -> None:
        """Parts of an axis: if they are all of it side by side, it is a whole of them; else it is broken."""
        spans = sorted({(start, end) for start, end, _ in pieces})
        ends = [0, *(end for _, end in spans)]
        if [start for start, _ in spans] == ends[:-1] and ends[-1] == size:
            self.wholes |= {(whole, dim) for _, _, dim in pieces}
        else:
            self.break_(whole, *(dim for _, _, dim in pieces))

    def _equation(self, equation: Any, operands: list[_Value], slices: Any) -> list[_Value]:
        name, inside = equation.primitive.name, held(equation)
        shapes = [variable.aval.shape for variable in equation.outvars]
        if name == "scan":
            return self._scan(equation, operands)
        if name == "while":
            return self._while(equation, operands)
        if name == "cond":
            branches = [self.run(each.jaxpr, self._consts(each), operands[1:]) for each in inside]
            for other in branches[1:]:
                for mine, theirs in zip(branches[0], other, strict=True):
                    self._all_same(mine.dims, theirs.dims)
            return branches[0]
        if inside and len(inside[0].jaxpr.invars) == len(operands) and "reduce" not in name:
            return self.run(inside[0].jaxpr, self._consts(inside[0]), operands)
        handler = getattr(self, f"_{name.replace('-', '_')}", None)
        results = [self.fresh(shape) for shape in shapes]
        if name in ("slice", "split"):
            self._cut(equation, operands[0], results, slices)
        elif name == "unstack":
            self._unstacked(operands[0], equation.params["axis"], results)
        elif name in _REDUCED or name in ("argmax", "argmin"):
            self._reduced(equation, operands[0], results[0])
        elif name.startswith(("reduce_window", "select_and")):
            self._windows(operands[0].dims, results[0])
        elif handler is not None:
            handler(equation, operands, results[0])
        else:
            self._elementwise(equation, operands, results)
        tainted = any(each.taint for each in operands)
        weight = operands[0].weight if name in _SAME else ""
        repeated = bool(operands) and operands[0].repeated and name in _SAME
        return [_Value(dims, weight, tainted, repeated) for dims in results]

    def _consts(self, closed: Any) -> list[_Value]:
        return [_Value(self.fresh(np.shape(const))) for const in closed.consts]

    def _all_same(self, mine: Dims, theirs: Dims) -> None:
        for a, b in zip(mine, theirs, strict=True):
            self.same(a, b)

    def _elementwise(self, equation: Any, operands: list[_Value], results: list[Dims]) -> None:
        for operand, before in zip(operands, equation.invars, strict=True):
            for result, after in zip(results, equation.outvars, strict=True):
                own, there = before.aval.shape, after.aval.shape
                if not own:
                    continue
                if len(own) != len(there):
                    self.break_(*operand.dims, *result)
                    continue
                for mine, theirs, a, b in zip(operand.dims, result, own, there, strict=True):
                    if a == b:
                        self.same(mine, theirs)
                    elif a != 1:
                        self.break_(mine, theirs)
        if equation.primitive.name in _WHOLE:
            parameters = equation.params
            place = parameters.get(
                "axis", parameters.get("dimension", parameters.get("operand_axis", -1))
            )
            places = parameters.get("dimensions", (place,))
            self.break_(*(operands[0].dims[place] for place in places))

    def _scan(self, equation: Any, operands: list[_Value]) -> list[_Value]:
        parameters = equation.params
        first, carried = parameters["num_consts"], parameters["num_carry"]
        consts = [_Value(each.dims, each.weight, each.taint, True) for each in operands[:first]]
        carry = operands[first : first + carried]
        rows = [
            _Value(each.dims[1:], each.weight, each.taint) for each in operands[first + carried :]
        ]
        closed = parameters["jaxpr"]
        results = self.run(closed.jaxpr, self._consts(closed), [*consts, *carry, *rows])
        for before, after in zip(carry, results, strict=False):
            self._all_same(before.dims, after.dims)
        length = parameters["length"]
        stacked = [_Value((*self.fresh((length,)), *row.dims)) for row in results[carried:]]
        return [*(_Value(each.dims) for each in results[:carried]), *stacked]

    def _while(self, equation: Any, operands: list[_Value]) -> list[_Value]:
        first, second = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        closed = equation.params["body_jaxpr"]
        carry = operands[first + second :]
        consts = [
            _Value(each.dims, each.weight, each.taint, True)
            for each in operands[first : first + second]
        ]
        results = self.run(closed.jaxpr, self._consts(closed), [*consts, *carry])
        for before, after in zip(carry, results, strict=True):
            self._all_same(before.dims, after.dims)
        return [_Value(each.dims) for each in results]

    # Products.

    def _product(self, a: _Value, b: _Value, contracted: Any, batched: Any) -> None:
        """Note the pairs of axes that a product sums over, and those that it has a matrix for."""
        for mine, theirs in zip(*contracted, strict=True):
            self.same(a.dims[mine], b.dims[theirs])
            axis = self.axis(a.dims[mine])
            weights = {each.weight for each in (a, b) if each.weight}
            axis.rows |= weights
            axis.reductions += not weights
            # A recurrence would exchange its state at each step.
            axis.broken |= (a.repeated and bool(a.weight)) or (b.repeated and bool(b.weight))
        for mine, theirs in zip(*batched, strict=True):
            self.same(a.dims[mine], b.dims[theirs])
            weights = {each.weight for each in (a, b) if each.weight}
            self.axis(a.dims[mine]).experts |= weights
            self.axis(a.dims[mine]).heads |= not weights

    def _written(self, value: _Value, dim: int) -> None:
        if value.weight:
            self.axis(dim).columns.add(value.weight)

    def _dot_general(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        a, b = operands
        contracted, batched = equation.params["dimension_numbers"]
        self._product(a, b, contracted, batched)
        left = list(result)
        for place in batched[0]:
            self.same(left.pop(0), a.dims[place])
        for value, number in ((a, 0), (b, 1)):
            for place, dim in enumerate(value.dims):
                if place not in (*contracted[number], *batched[number]):
                    self.same(left.pop(0), dim)
                    self._written(value, dim)

    def _ragged_dot_general(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        a, b = operands[:2]
        numbers = equation.params["ragged_dot_dimension_numbers"]
        contracted, batched = numbers.dot_dimension_numbers
        groups = tuple(numbers.rhs_group_dimensions)
        self._product(a, b, contracted, batched)
        for place in groups:
            self.axis(b.dims[place]).experts |= {b.weight} - {""}
        left = list(result)
        if not groups:
            left.pop(0)  # a matrix for each group
        for place in batched[0]:
            self.same(left.pop(0), a.dims[place])
        for value, number in ((a, 0), (b, 1)):
            for place, dim in enumerate(value.dims):
                if place in (*contracted[number], *batched[number]) or (number and place in groups):
                    continue
                self.same(left.pop(0), dim)
                self._written(value, dim)

    def _conv_general_dilated(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        a, b = operands
        numbers, groups = (
            equation.params["dimension_numbers"],
            equation.params["feature_group_count"],
        )
        (batch, channels, *space), (out, into, *_), (batch_out, out_out, *space_out) = (
            numbers.lhs_spec,
            numbers.rhs_spec,
            numbers.out_spec,
        )
        self.same(a.dims[batch], result[batch_out])
        self.same(b.dims[out], result[out_out])
        self.axis(result[out_out]).channels = True
        if groups == 1:
            self._product(a, b, ((channels,), (into,)), ((), ()))
            self.axis(a.dims[channels]).channels = True
            self._written(b, b.dims[out])
        else:  # each group of channels is written from itself alone
            self.same(a.dims[channels], result[out_out])
            self.axis(result[out_out]).sizes.add(groups)
            self.break_(b.dims[into])
        self.break_(*(a.dims[place] for place in space), *(result[place] for place in space_out))

    # Layout.

    def _transpose(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        for dim, place in zip(result, equation.params["permutation"], strict=True):
            self.same(operands[0].dims[place], dim)

    def _squeeze(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        gone = {place % len(operands[0].dims) for place in equation.params["dimensions"]}
        rest = [dim for place, dim in enumerate(operands[0].dims) if place not in gone]
        self._all_same(tuple(rest), result)

    def _expand_dims(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        new = {place % len(result) for place in equation.params["dimensions"]}
        rest = tuple(dim for place, dim in enumerate(result) if place not in new)
        self._all_same(operands[0].dims, rest)

    def _broadcast_in_dim(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        for place, to in enumerate(equation.params["broadcast_dimensions"]):
            if before[place] == after[to]:
                self.same(operands[0].dims[place], result[to])

    def _reshape(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        before = _longer(operands[0].dims, equation.invars[0].aval.shape)
        after = _longer(result, equation.outvars[0].aval.shape)
        while before and after:
            mine, theirs = [before.pop(0)], [after.pop(0)]
            while (a := _size(mine)) != (b := _size(theirs)):
                side, rest = (mine, before) if a < b else (theirs, after)
                side.append(rest.pop(0))
            self._regrouped(mine, theirs)

    def _regrouped(self, mine: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> None:
        """Axes that others with as many elements replace: the outermost of both is the same axis."""
        (first, _), (second, _) = mine[0], theirs[0]
        if (
            len(mine) > 1
            and len(theirs) > 1
            and mine[0][1] % theirs[0][1]
            and theirs[0][1] % mine[0][1]
        ):
            self.break_(*(dim for dim, _ in (*mine, *theirs)))
            return
        self.same(first, second)
        if len(mine) == 1:
            self.wholes |= {(first, dim) for dim, _ in theirs[1:]}
        for dim, _ in mine[1:]:
            self.axis(dim).merged = True

    def _cut(self, equation: Any, operand: _Value, results: list[Dims], slices: Any) -> None:
        atom, shape = equation.invars[0], equation.invars[0].aval.shape
        if equation.primitive.name == "split":
            places = {int(equation.params["axis"])}
            start = 0
            for dims, size in zip(results, equation.params["sizes"], strict=True):
                place = next(iter(places))
                slices[atom, place].append((start, start + int(size), dims[place]))
                start += int(size)
        else:
            parameters = equation.params
            starts, ends = parameters["start_indices"], parameters["limit_indices"]
            strides = parameters["strides"] or (1,) * len(shape)
            places = set()
            for place, size in enumerate(shape):
                if (starts[place], ends[place], strides[place]) == (0, size, 1):
                    continue
                places.add(place)
                dim = results[0][place]
                if strides[place] != 1:
                    self.break_(operand.dims[place], dim)
                else:
                    slices[atom, place].append((starts[place], ends[place], dim))
        for dims in results:
            for place, (mine, theirs) in enumerate(zip(operand.dims, dims, strict=True)):
                if place not in places:
                    self.same(mine, theirs)

    def _concatenate(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        place = equation.params["dimension"]
        for operand in operands:
            for at, dim in enumerate(operand.dims):
                self.break_(dim) if at == place else self.same(dim, result[at])
        self.break_(result[place])

    def _stack(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        rest = [dim for at, dim in enumerate(result) if at != equation.params["axis"]]
        for operand in operands:
            self._all_same(operand.dims, tuple(rest))

    def _tile(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        for mine, theirs, count in zip(
            operands[0].dims, result, equation.params["reps"], strict=True
        ):
            self.same(mine, theirs) if count == 1 else self.break_(mine, theirs)

    def _unstacked(self, operand: _Value, axis: int, results: list[Dims]) -> None:
        self.break_(operand.dims[axis])
        rest = tuple(dim for at, dim in enumerate(operand.dims) if at != axis)
        for dims in results:
            self._all_same(rest, dims)

    def _pad(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        for place, padding in enumerate(equation.params["padding_config"]):
            if tuple(padding) == (0, 0, 0):
                self.same(operands[0].dims[place], result[place])
            else:
                self.break_(operands[0].dims[place], result[place])

    def _reduced(self, equation: Any, operand: _Value, result: Dims) -> None:
        gone = {int(place) for place in equation.params["axes"]}
        rest = tuple(dim for place, dim in enumerate(operand.dims) if place not in gone)
        self._all_same(rest, result)
        for place in gone:
            axis = self.axis(operand.dims[place])
            axis.reductions += 1
            axis.broken |= equation.primitive.name.startswith("arg")

    def _windows(self, before: Dims, after: Dims) -> None:
        for mine, theirs in zip(before, after, strict=True):
            self.same(mine, theirs)

    # Lookups.

    def _gather(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        table, places = operands[:2]
        numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
        gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        kept = [place for place in range(len(table.dims)) if place not in gone]
        for place, at in zip(kept, numbers.offset_dims, strict=True):
            if sizes[place] == equation.invars[0].aval.shape[place]:
                self.same(table.dims[place], result[at])
            else:
                self.break_(table.dims[place], result[at])
        rest = [dim for at, dim in enumerate(result) if at not in numbers.offset_dims]
        self._all_same(places.dims[:-1], tuple(rest))
        for mine, theirs in zip(
            numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
        ):
            self.same(table.dims[mine], places.dims[theirs])
        for place in numbers.collapsed_slice_dims:
            if table.weight:
                self.axis(table.dims[place]).tables.add(table.weight)
                self.axis(table.dims[place]).looked_up |= places.taint
            else:
                self.break_(table.dims[place])

    def _scatter(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        target, _, updates = operands[:3]
        numbers = equation.params["dimension_numbers"]
        self._all_same(target.dims, result)
        gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        kept = [place for place in range(len(target.dims)) if place not in gone]
        before, after = equation.invars[2].aval.shape, equation.invars[0].aval.shape
        for place, at in zip(kept, numbers.update_window_dims, strict=True):
            if before[at] == after[place]:
                self.same(target.dims[place], updates.dims[at])
            else:
                self.break_(target.dims[place], updates.dims[at])
        self.break_(*(target.dims[place] for place in numbers.inserted_window_dims))

    _scatter_add = _scatter_mul = _scatter_min = _scatter_max = _scatter

    def _dynamic_slice(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        shapes = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        for mine, theirs, *sizes in zip(operands[0].dims, result, *shapes, strict=True):
            if sizes[0] == sizes[1]:
                self.same(mine, theirs)
            else:
                self.break_(mine, theirs)

    def _dynamic_update_slice(self, equation: Any, operands: list[_Value], result: Dims) -> None:
        self._all_same(operands[0].dims, result)
        shapes = equation.invars[0].aval.shape, equation.invars[1].aval.shape
        for mine, theirs, *sizes in zip(operands[0].dims, operands[1].dims, *shapes, strict=True):
            if sizes[0] == sizes[1]:
                self.same(mine, theirs)
            else:
                self.break_(mine, theirs)


def _longer(dims: Dims, shape: Sequence[int]) -> list[tuple[int, int]]:
    return [(dim, int(size)) for dim, size in zip(dims, shape, strict=True) if size != 1]


def _size(axes: Sequence[tuple[int, int]]) -> int:
    return int(np.prod([size for _, size in axes]))
