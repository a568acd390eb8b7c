"""How the arrays of a layer of Flax can be made of those of a layer of torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from converters.layers.layout import Layout, Permute, chain
from converters.target.layouts import permitted
from converters.target.modules import role_of
from migrate.parity.fitting.heads import Heads
from migrate.parity.fitting.sources import Source

Shape = tuple[int, ...]
_MOST = 8


@dataclass(frozen=True)
class Made:
    """An array of Flax's and what it is made of.

    Attributes:
        name: its path.
        source: the array of the plan.
        layout: from the plan's arrangement to its own.
    """

    name: str
    source: Source
    layout: Layout

    def of(self, heads: Heads) -> Made:
        """The same with a head's rows in another order, or times a number."""
        shape = self.layout.shape(self.source.leaf.info.shape)
        return replace(self, layout=chain((self.layout, heads.layout(shape))))


def ways_to_make(wanted: Mapping[str, Shape], sources: Sequence[Source]) -> list[tuple[Made, ...]]:
    """The ways in which these arrays can be made, each of one source; none if they cannot.

    What is called alike is alike (kernel, bias, scale); where the names say nothing (a class of the user's
    own) shapes do. Where several ways are left the outputs decide.
    """
    if len(wanted) != len(sources):
        return []
    by_name = _by_name(wanted, sources)
    if by_name is not None:
        orders: Iterator[Sequence[Source]] = iter([by_name])
    elif len(sources) <= 3:
        orders = itertools.permutations(sources)
    else:
        return []
    found: list[tuple[Made, ...]] = []
    for order in orders:
        each = [
            [
                Made(name, one, layout)
                for one in (source, source.plain)
                if one is not None
                for layout in _layouts(name, shape, one)
            ]
            for (name, shape), source in zip(wanted.items(), order, strict=True)
        ]
        found += itertools.islice(itertools.product(*each), _MOST)
    return found[:_MOST]


def _by_name(wanted: Mapping[str, Shape], sources: Sequence[Source]) -> list[Source] | None:
    """The source of each array by its role, or by the last two parts of its path (query/kernel)."""
    for keys, others in (
        ([_end(name) for name in wanted], [_end(one.path) for one in sources]),
        (
            [role_of(name, shape)[1] for name, shape in wanted.items()],
            [one.role for one in sources],
        ),
    ):
        known = dict(zip(others, sources, strict=True))
        if len(known) == len(sources) and sorted(known) == sorted(keys):
            return [known[key] for key in keys]
    return None


def _end(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def _layouts(name: str, shape: Shape, source: Source) -> list[Layout]:
    kind = source.kind.partition(" ")[0]
    role = "kernel" if _may_be_kernel(name, shape, source) else source.role
    own = source.leaf.info.shape
    found = permitted(kind, role, own, shape)
    if kind == "Parameter" and len(own) > 2 and shape == (*own[2:], own[1], own[0]) != own:
        # A convolution's, of a class of the user's own.
        found.insert(0, Permute((*range(2, len(own)), 1, 0)))
    if kind == "Parameter" and len(own) == 3:
        # An image's, channels first.
        moved = (*own[1:], own[0])
        found += [chain((Permute((1, 2, 0)), one)) for one in permitted(kind, role, moved, shape)]
    return found


def _may_be_kernel(name: str, shape: Shape, source: Source) -> bool:
    """Whether a parameter of a user's own class may be turned: two sides, and called no table."""
    own = source.kind.partition(" ")[0] == "Parameter"
    return own and len(source.leaf.info.shape) == 2 and role_of(name, shape)[1] == "kernel"
