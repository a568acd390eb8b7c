"""Choice of the axes of a model's weights that are divided over `tensor`, `expert` and `fsdp`.

`tensor` divides axes that one product writes and another one sums over (column- and row-parallel products),
heads of attention, channels of convolutions, and the vocabulary. Of two axes of one weight it divides one:
first those that nothing else sums over (norms sum over the axis of the residual stream), of these the one
with most weights. The vocabulary is divided where that allows as many devices as the layers do.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from migrate.port.mesh.axes import SharedAxis, Traced

DATA, FSDP, TENSOR, EXPERT = AXES = ("data", "fsdp", "tensor", "expert")

# A smaller common divisor is no reason to divide an axis over `fsdp`.
_LEAST = 8
_MOST = 128


@dataclass(frozen=True)
class WeightSpec:
    """Division of a weight.

    Attributes:
        spec: a mesh axis, or None, for each of its axes; () if it is whole on each device.
        why: the reason, in words.
    """

    spec: tuple[str | None, ...]
    why: str


def specs_of(traced: Traced, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, WeightSpec]:
    """The division of each weight, by path.

    Args:
        traced: axes of the model.
        shapes: shape of each weight.
    """
    sizes = {path: math.prod(shape) for path, shape in shapes.items()}
    experts = {number for number, axis in traced.axes.items() if _is_expert(axis, shapes)}
    chosen = _chosen(traced, sizes, experts)
    longest = max((size for shape in shapes.values() for size in shape), default=1)
    return {
        path: _spec(path, shape, traced, chosen, experts, small=sizes[path] < longest)
        for path, shape in shapes.items()
    }


def _is_expert(axis: SharedAxis, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether weights have a matrix for each index of the axis, and it is no part of a longer one."""
    stacked = any(len(shapes[path]) > 2 for path in axis.experts)
    return stacked and len(axis.sizes) == 1 and not _is_odd(axis)


def _is_odd(axis: SharedAxis) -> bool:
    return bool(math.gcd(*axis.sizes) % 2)


def _chosen(traced: Traced, sizes: Mapping[str, int], experts: set[int]) -> dict[int, str]:
    """The axes that `tensor` divides, with what each is: "heads", "channels", "hidden", "vocabulary"."""
    columns = {
        number: axis.columns
        | {
            path
            for whole, piece in traced.wholes
            if piece == number
            for path in traced.axes[whole].columns
        }
        for number, axis in traced.axes.items()
    }
    pairs = [
        number
        for number, axis in traced.axes.items()
        if number not in experts and _may_divide(axis) and axis.rows and columns[number]
    ]

    weights = {
        number: sum(sizes[path] for path, _ in traced.axes[number].weights) for number in pairs
    }
    alike: dict[frozenset[str], int] = defaultdict(int)
    for number in pairs:
        alike[_alike(columns[number])] += weights[number]
    cycles = _cycles(traced, columns)

    def rank(number: int) -> tuple[bool, bool, bool, int, int, str]:
        axis = traced.axes[number]
        group = alike[_alike(columns[number])]
        last = bool(axis.reductions), axis.merged, number in cycles
        return *last, -group, -weights[number], min(columns[number])

    chosen: dict[int, str] = {}
    taken: dict[str, int] = {}
    for number in sorted(pairs, key=rank):
        if _is_free(number, traced, taken):
            _take(number, _kind(traced.axes[number]), traced, chosen, taken)
    for whole, piece in sorted(
        traced.wholes, key=lambda pair: min(traced.axes[pair[0]].weights, default=("", 0))
    ):
        axis = traced.axes[whole]
        known = chosen.get(piece)
        if known is None or whole in chosen or not axis.columns or axis.is_input:
            continue
        if not max(axis.sizes) % 2 and not _twice(whole, traced) and _is_free(whole, traced, taken):
            _take(whole, known, traced, chosen, taken)
    most = divisor(math.gcd(*traced.axes[number].sizes) for number in chosen)
    for number, axis in traced.axes.items():
        if number in chosen or number in experts or not _is_vocabulary(number, traced, sizes):
            continue
        divides = divisor([math.gcd(*axis.sizes)]) >= (most if chosen else 2)
        if divides and _may_divide(axis) and _is_free(number, traced, taken):
            _take(number, "vocabulary", traced, chosen, taken)
    return chosen


def _alike(paths: Iterable[str]) -> frozenset[str]:
    """Paths without the numbers of the layers that hold them."""
    return frozenset(
        "/".join([*map(_without_numbers, path.split("/")[:-3]), *path.split("/")[-3:]])
        for path in paths
    )


def _cycles(traced: Traced, columns: Mapping[int, set[str]]) -> set[int]:
    """Axes that products read and, after other products, write again: residual streams."""
    after = {
        number: {other for other in columns if axis.rows & columns[other]}
        for number, axis in traced.axes.items()
        if axis.rows
    }
    cycles = set()
    for number in after:
        reached, left = set[int](), [number]
        while left and number not in reached:
            new = after.get(left.pop(), set()) - reached
            reached |= new
            left += new
        if number in reached:
            cycles.add(number)
    return cycles


def divisor(sizes: Iterable[int]) -> int:
    """The largest power of two that divides the sizes, up to that of a large mesh."""
    return math.gcd(_MOST, *sizes)


def _take(
    number: int, kind: str, traced: Traced, chosen: dict[int, str], taken: dict[str, int]
) -> None:
    chosen[number] = kind
    taken |= {path: number for path, _ in traced.axes[number].weights}


def _may_divide(axis: SharedAxis) -> bool:
    paths = [path for path, _ in axis.weights]
    return not (axis.broken or axis.is_input or _is_odd(axis)) and len(paths) == len(set(paths))


def _twice(number: int, traced: Traced) -> bool:
    paths = [path for path, _ in traced.axes[number].weights]
    return len(paths) != len(set(paths))


def _is_free(number: int, traced: Traced, taken: Mapping[str, int]) -> bool:
    return not any(path in taken for path, _ in traced.axes[number].weights)


def _kind(axis: SharedAxis) -> str:
    if axis.heads:
        return "heads"
    return "channels" if axis.channels else "hidden"


def _is_vocabulary(number: int, traced: Traced, sizes: Mapping[str, int]) -> bool:
    """Whether tables are looked up along the axis by integers of the inputs, or outputs have it, and it is
    longer than the other axis.
    """
    axis = traced.axes[number]
    length = max(axis.sizes)
    paths = axis.tables if axis.looked_up else set()
    if axis.is_output and not axis.rows:
        paths = paths | axis.columns
    return bool(paths) and all(length * length > sizes[path] for path in paths)


def _spec(
    path: str,
    shape: tuple[int, ...],
    traced: Traced,
    chosen: Mapping[int, str],
    experts: set[int],
    *,
    small: bool,
) -> WeightSpec:
    numbers = traced.weights[path]
    spec: list[str | None] = [None] * len(shape)
    why = []
    for place, number in enumerate(numbers):
        axis = traced.axes[number]
        if number in experts and path in axis.experts:
            spec[place] = EXPERT
            why.append("experts")
    for place, number in enumerate(numbers):
        if number in chosen and spec[place] is None:
            spec[place] = TENSOR
            why.append(_role(path, number, traced, chosen[number]))
    if sum(size > 1 for size in shape) > 1 and not small:
        places = [place for place, known in enumerate(spec) if known is None]
        place = max(places, key=lambda at: (divisor((shape[at],)), shape[at]), default=0)
        if places and divisor((shape[place],)) >= _LEAST:
            spec[place] = FSDP
            why = why or ["no tensor axis"]
    if not any(spec):
        return WeightSpec((), "whole on each device")
    return WeightSpec(tuple(spec), ", ".join(why))


def _role(path: str, number: int, traced: Traced, kind: str) -> str:
    axis = traced.axes[number]
    if kind == "vocabulary":
        return "vocabulary"
    wholes = {whole for whole, piece in traced.wholes if piece == number}
    pieces = {piece for whole, piece in traced.wholes if whole == number}
    if path in axis.rows:
        columns = {
            *axis.columns,
            *(each for whole in wholes for each in traced.axes[whole].columns),
        }
        return f"{kind}, row-parallel: sums over what {_named(columns, traced.weights)} wrote"
    if path in axis.columns:
        rows = {*axis.rows, *(each for piece in pieces for each in traced.axes[piece].rows)}
        named = _named(rows, traced.weights)
        return f"{kind}, column-parallel: {named} sum{'' if ' and ' in named else 's'} over it"
    return f"{kind}: follows the axis that it is added to"


def _named(paths: Iterable[str], weights: Iterable[str]) -> str:
    """The modules of weights, in words."""
    parents = defaultdict(set)
    for path in weights:
        *_, parent, module = ["", *_without_numbers(_module(path)).split("/")]
        parents[module].add(parent)
    modules = [_without_numbers(_module(path)).split("/") for path in sorted(paths)]
    short = ("/".join(each[-2:] if len(parents[each[-1]]) > 2 else each[-1:]) for each in modules)
    names = list(dict.fromkeys(short))
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _module(path: str) -> str:
    """The path of the module that holds a weight, or of the weight if the module has several matrices."""
    module, _, name = path.rpartition("/")
    return module if name in ("kernel", "embedding", "scale", "bias", "weight") else path


def _without_numbers(path: str) -> str:
    """A path without the numbers of layers."""
    return re.sub(r"_\d+(?=_|/|$)", "", path)
