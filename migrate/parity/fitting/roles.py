"""Ways to make the arrays of a Flax layer from those of a torch layer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from converters.layers.layout import Layout, Permute, chain
from converters.target.layouts import permitted
from converters.target.modules import role_of
from migrate.parity.fitting.heads import Heads
from migrate.parity.fitting.sources import SourceArray

Shape = tuple[int, ...]
_MOST = 8


@dataclass(frozen=True)
class SourcedArray:
    """Array of Flax's and its source.

    Attributes:
        name: its path.
        source: the array of the plan.
        layout: layout that turns the plan's arrangement into its own.
    """

    name: str
    source: SourceArray
    layout: Layout

    def of(self, heads: Heads) -> SourcedArray:
        """Copy with a head's rows in another order, or times a number."""
        shape = self.layout.shape(self.source.leaf.info.shape)
        return replace(self, layout=chain((self.layout, heads.layout(shape))))


def ways_to_make(
    wanted: Mapping[str, Shape], sources: Sequence[SourceArray]
) -> list[tuple[SourcedArray, ...]]:
    """Ways to make these arrays, each from one source; none if it is impossible.

    Arrays with the same role name correspond (kernel, bias, scale). If the names show nothing (a
    user-defined class), shapes decide. If several ways are left, the outputs decide.
    """
    if len(wanted) != len(sources):
        return []
    by_name = _by_name(wanted, sources)
    if by_name is not None:
        orders: Iterator[Sequence[SourceArray]] = iter([by_name])
    elif len(sources) <= 3:
        orders = itertools.permutations(sources)
    else:
        return []
    ways: list[tuple[SourcedArray, ...]] = []
    for order in orders:
        each = [
            [
                SourcedArray(name, origin, layout)
                for origin in (source, source.plain)
                if origin is not None
                for layout in _layouts(name, shape, origin)
            ]
            for (name, shape), source in zip(wanted.items(), order, strict=True)
        ]
        ways += itertools.islice(itertools.product(*each), _MOST)
    return ways[:_MOST]


def _by_name(
    wanted: Mapping[str, Shape], sources: Sequence[SourceArray]
) -> list[SourceArray] | None:
    """Source of each array by its role, or by the last two parts of its path (query/kernel)."""
    for keys, others in (
        ([_end(name) for name in wanted], [_end(source.path) for source in sources]),
        (
            [role_of(name, shape)[1] for name, shape in wanted.items()],
            [source.role for source in sources],
        ),
    ):
        known = dict(zip(others, sources, strict=True))
        if len(known) == len(sources) and sorted(known) == sorted(keys):
            return [known[key] for key in keys]
    return None


def _end(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def _layouts(name: str, shape: Shape, source: SourceArray) -> list[Layout]:
    kind = source.kind.partition(" ")[0]
    role = "kernel" if _may_be_kernel(name, shape, source) else source.role
    own = source.leaf.info.shape
    layouts = permitted(kind, role, own, shape)
    if kind == "Parameter" and len(own) > 2 and shape == (*own[2:], own[1], own[0]) != own:
        # A convolution's kernel, in a user-defined class.
        layouts.insert(0, Permute((*range(2, len(own)), 1, 0)))
    if kind == "Parameter" and len(own) == 3:
        # An image's array, channels first.
        moved = (*own[1:], own[0])
        layouts += [
            chain((Permute((1, 2, 0)), layout)) for layout in permitted(kind, role, moved, shape)
        ]
    return layouts


def _may_be_kernel(name: str, shape: Shape, source: SourceArray) -> bool:
    """Whether a parameter of a user-defined class may be transposed: two axes, and no table by its name."""
    own = source.kind.partition(" ")[0] == "Parameter"
    return own and len(source.leaf.info.shape) == 2 and role_of(name, shape)[1] == "kernel"
