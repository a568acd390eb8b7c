"""Origin of a kernel's elements in torch, once the value that it multiplies is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.parity.fitting.below.weights import Fed, NumberedWeights
from migrate.parity.fitting.sources import EXACT, SourceArray, UnitCall, nearest

Array = np.ndarray[Any, Any]
_GROUPS = (2, 3, 4)


@dataclass(frozen=True)
class KernelProduct:
    """Product of a known value with an unknown kernel.

    Attributes:
        value: the known value.
        axes: axes of the value that are summed over.
        summed: sizes of these axes, in the kernel's order.
        free: sizes of the kernel's other axes.
    """

    value: Array
    axes: tuple[int, ...]
    summed: tuple[int, ...]
    free: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Number of elements summed over."""
        return math.prod(self.summed)

    @property
    def columns(self) -> int:
        """Number of outputs."""
        return math.prod(self.free)


@dataclass(frozen=True)
class Kernel:
    """Possible origin of an unknown kernel.

    Attributes:
        calls: calls of the layers: several where they are fused in Flax.
        fed: for each call, the match of its argument.
        sources: for each call, its kernel.
    """

    calls: tuple[UnitCall, ...]
    fed: tuple[Fed, ...]
    sources: tuple[SourceArray, ...]

    @property
    def name(self) -> str:
        """Names of all layers."""
        return "+".join(call.unit.name for call in self.calls)


def singles(product: KernelProduct, fed: Sequence[Fed]) -> list[Kernel]:
    """Layers whose kernels have the right number of elements."""
    return [kernel for kernel in _each(fed) if _size(kernel) == product.rows * product.columns]


def groups(product: KernelProduct, fed: Sequence[Fed]) -> list[Kernel]:
    """Groups of layers with the same input whose kernels together have the right number of elements."""
    whole = [
        kernel
        for kernel in _each(fed)
        if kernel.calls[0].unit.part is None and _size(kernel) % product.rows == 0
    ]
    fused = []
    for count in _GROUPS:
        for several in itertools.combinations(whole, count):
            if sum(map(_size, several)) == product.rows * product.columns:
                fused += [_together(order) for order in itertools.permutations(several)]
        if fused:
            break
    return fused


def _together(several: Sequence[Kernel]) -> Kernel:
    return Kernel(
        tuple(kernel.calls[0] for kernel in several),
        tuple(kernel.fed[0] for kernel in several),
        tuple(kernel.sources[0] for kernel in several),
    )


def _each(fed: Sequence[Fed]) -> Iterator[Kernel]:
    for argument in fed:
        for call in argument.calls:
            source = kernel_of(call)
            if source is not None:
                yield Kernel((call,), (argument,), (source,))


def kernel_of(call: UnitCall) -> SourceArray | None:
    """The only array of a layer that multiplies its input; None if there are several."""
    kernels = [
        source
        for source in call.unit.sources
        if not source.kind.startswith(("Embedding", "Conv"))
        and (
            len([side for side in source.leaf.info.shape if side > 1]) >= 2
            or source.role == "kernel"
        )
    ]
    if len(kernels) != 1:
        return None
    return kernels[0].plain or kernels[0]


def _size(kernel: Kernel) -> int:
    return kernel.sources[0].leaf.info.size


def columns_of(kernel: Kernel, free: tuple[int, ...]) -> list[Array]:
    """Ways to number the outputs of the layers along a kernel's free axes: layer × 2^40 + output."""
    counts = [
        source.leaf.info.size // fed.sides
        for source, fed in zip(kernel.sources, kernel.fed, strict=True)
    ]
    each = [np.arange(count) + (number << 40) for number, count in enumerate(counts)]
    if len(each) == 1:
        return [each[0].reshape(free)]
    columns: list[Array] = []
    for axis, side in enumerate(free):
        rest = math.prod(free) // side
        without = (*free[:axis], *free[axis + 1 :])
        if side == len(each) and all(count == rest for count in counts):
            columns.append(np.stack([numbers.reshape(without) for numbers in each], axis))
    for axis, side in enumerate(free):
        rest = math.prod(free) // side
        if all(count % rest == 0 for count in counts) and side != len(each):
            parts = [
                numbers.reshape((*free[:axis], count // rest, *free[axis + 1 :]))
                for numbers, count in zip(each, counts, strict=True)
            ]
            columns.append(np.concatenate(parts, axis))
    return columns


def matrix(source: SourceArray, call: UnitCall, fed: Fed, weights: NumberedWeights) -> Array | None:
    """Numbers of a kernel's elements, (in, out)."""
    numbers = weights.numbers(source)
    if numbers is None:
        return None
    rows = fed.sides
    straight = numbers.reshape(rows, -1)
    if not source.kind.startswith("Parameter") or numbers.ndim != 2:
        return straight
    # A user-defined class: torch's values show which axis is the input.
    truth = weights.sources.output(call)
    possible = [straight] if numbers.shape[0] == rows else []
    possible += [numbers.T] if numbers.shape[1] == rows else []
    inputs = weights.sources.values(fed.ref).reshape(-1, rows)
    for candidate in possible:
        result = inputs @ weights.values[candidate]
        for other in call.unit.sources:
            bias = weights.numbers(other)
            if other is not source and bias is not None and bias.size == result.shape[-1]:
                result = result + weights.values[bias.reshape(-1)]
        if truth is not None and truth.size == result.size:
            near = nearest(truth, result.reshape(*fed.ref.shape[:-1], -1))
            if near is not None and near[1] <= EXACT:
                return candidate
    return possible[0] if possible else None
