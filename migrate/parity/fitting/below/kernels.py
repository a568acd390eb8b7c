"""Which of torch's elements a kernel is made of, once it is known what it is multiplied with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.parity.fitting.below.weights import Fed, Weights
from migrate.parity.fitting.sources import EXACT, Source, UnitCall, nearest

Array = np.ndarray[Any, Any]
_GROUPS = (2, 3, 4)


@dataclass(frozen=True)
class Product:
    """A product of a known value with an unknown kernel.

    Attributes:
        value: what is known.
        axes: of it, that are summed over.
        summed: their sides, as the kernel has them.
        free: the kernel's other sides.
    """

    value: Array
    axes: tuple[int, ...]
    summed: tuple[int, ...]
    free: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many are summed over."""
        return math.prod(self.summed)

    @property
    def columns(self) -> int:
        """How many are given."""
        return math.prod(self.free)


@dataclass(frozen=True)
class Kernel:
    """What an unknown kernel may be made of.

    Attributes:
        calls: of the layers: several where they are fused in Flax.
        fed: of each what is known of its argument.
        sources: of each its kernel.
    """

    calls: tuple[UnitCall, ...]
    fed: tuple[Fed, ...]
    sources: tuple[Source, ...]

    @property
    def name(self) -> str:
        """Of all of them."""
        return "+".join(one.unit.name for one in self.calls)


def singles(product: Product, fed: Sequence[Fed]) -> list[Kernel]:
    """Layers whose kernels have as many elements."""
    return [one for one in _each(fed) if _size(one) == product.rows * product.columns]


def groups(product: Product, fed: Sequence[Fed]) -> list[Kernel]:
    """Layers that were given the same, whose kernels have as many elements together."""
    whole = [
        one
        for one in _each(fed)
        if one.calls[0].unit.part is None and _size(one) % product.rows == 0
    ]
    found = []
    for count in _GROUPS:
        for several in itertools.combinations(whole, count):
            if sum(map(_size, several)) == product.rows * product.columns:
                found += [_together(order) for order in itertools.permutations(several)]
        if found:
            break
    return found


def _together(several: Sequence[Kernel]) -> Kernel:
    return Kernel(
        tuple(one.calls[0] for one in several),
        tuple(one.fed[0] for one in several),
        tuple(one.sources[0] for one in several),
    )


def _each(fed: Sequence[Fed]) -> Iterator[Kernel]:
    for one in fed:
        for call in one.calls:
            source = kernel_of(call)
            if source is not None:
                yield Kernel((call,), (one,), (source,))


def kernel_of(call: UnitCall) -> Source | None:
    """The one array of a layer that is multiplied with what it is given."""
    found = [
        one
        for one in call.unit.sources
        if not one.kind.startswith(("Embedding", "Conv"))
        and (len([side for side in one.leaf.info.shape if side > 1]) >= 2 or one.role == "kernel")
    ]
    if len(found) != 1:
        return None
    return found[0].plain or found[0]


def _size(kernel: Kernel) -> int:
    return kernel.sources[0].leaf.info.size


def columns_of(kernel: Kernel, free: tuple[int, ...]) -> list[Array]:
    """The ways in which the free sides of a kernel count the outputs of its layers: number × 2^40 + place."""
    counts = [
        source.leaf.info.size // fed.sides
        for source, fed in zip(kernel.sources, kernel.fed, strict=True)
    ]
    each = [np.arange(count) + (number << 40) for number, count in enumerate(counts)]
    if len(each) == 1:
        return [each[0].reshape(free)]
    found: list[Array] = []
    for axis, side in enumerate(free):
        rest = math.prod(free) // side
        without = (*free[:axis], *free[axis + 1 :])
        if side == len(each) and all(count == rest for count in counts):
            found.append(np.stack([one.reshape(without) for one in each], axis))
    for axis, side in enumerate(free):
        rest = math.prod(free) // side
        if all(count % rest == 0 for count in counts) and side != len(each):
            parts = [
                one.reshape((*free[:axis], count // rest, *free[axis + 1 :]))
                for one, count in zip(each, counts, strict=True)
            ]
            found.append(np.concatenate(parts, axis))
    return found


def matrix(source: Source, call: UnitCall, fed: Fed, weights: Weights) -> Array | None:
    """The numbers of a kernel's elements, (in, out)."""
    numbers = weights.numbers(source)
    if numbers is None:
        return None
    rows = fed.sides
    straight = numbers.reshape(rows, -1)
    if not source.kind.startswith("Parameter") or numbers.ndim != 2:
        return straight
    # A class of the user's own: torch's own values say which way it lies.
    truth = weights.sources.output(call)
    possible = [straight] if numbers.shape[0] == rows else []
    possible += [numbers.T] if numbers.shape[1] == rows else []
    given = weights.sources.values(fed.ref).reshape(-1, rows)
    for one in possible:
        made = given @ weights.values[one]
        for other in call.unit.sources:
            bias = weights.numbers(other)
            if other is not source and bias is not None and bias.size == made.shape[-1]:
                made = made + weights.values[bias.reshape(-1)]
        if truth is not None and truth.size == made.size:
            near = nearest(truth, made.reshape(*fed.ref.shape[:-1], -1))
            if near is not None and near[1] <= EXACT:
                return one
    return possible[0] if possible else None
