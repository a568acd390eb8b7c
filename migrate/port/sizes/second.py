"""A second configuration of the original, in which as many of its numbers are others as it takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from migrate.port.sizes.construction import Construction
from migrate.port.sizes.instance import Arrays, Axis, Change, Instance, alive, built, run
from migrate.port.sizes.leaves import Leaf, Value, candidates, leaves
from migrate.port.sizes.reads import reads

# Numbers of parameters from which on the second instance is a smaller one.
_BIG = 4_000_000
_DIVISORS = (16, 8, 4, 2)
_WIDE = 64
# A number from here on may be that of layers.
_DEEP = 5
# Of a big model so many values are tried for each number.
_FEW = 3


@dataclass
class Second:
    """The changes that the original takes, all at once.

    Attributes:
        changes: each with an effect on what the model holds or gives.
        idle: numbers without any effect on it.
        refused: numbers of which the original takes no other value.
        refused_axes: fixed axes of inputs that the original takes at their size only.
    """

    changes: list[Change] = field(default_factory=list)
    idle: list[Leaf] = field(default_factory=list)
    refused: list[Leaf] = field(default_factory=list)
    refused_axes: list[Axis] = field(default_factory=list)


def second(construction: Construction, base: Instance, fixed: Sequence[Axis], shown: str) -> Second:
    """Look for other values of the numbers that the model was made with, and other sizes of fixed axes.

    Args:
        construction: of the model that is ported.
        base: it, built anew.
        fixed: axes of inputs that the recording has fixed.
        shown: the model, for messages.
    """
    return _Search(construction, base.inputs, tuple(fixed), shown, alive(base)).run()


def beside(
    construction: Construction,
    base: Instance,
    good: Sequence[Change],
    numbers: Sequence[Leaf],
    shown: str,
) -> list[Change]:
    """Other values of numbers that the original takes beside these changes, with an effect."""
    state = built(construction, base.inputs, tuple(good), shown) if numbers else None
    if state is None:
        return []
    search = _Search(construction, base.inputs, (), shown, alive(state))
    search.found.changes += good
    return search.more(numbers)


class _Search:
    def __init__(
        self,
        construction: Construction,
        inputs: Arrays,
        fixed: tuple[Axis, ...],
        shown: str,
        state: Instance,
    ) -> None:
        self.construction = construction
        self.inputs, self.fixed, self.shown = inputs, fixed, shown
        self.state = state
        self.found = Second()
        count = sum(one.numel() for one in state.module.parameters())
        self.big = count > _BIG
        self.read = reads(construction, inputs)

    def run(self) -> Second:
        all_leaves = leaves(self.construction.arguments)
        if self.big:
            self._shrink(all_leaves)
        changed = {one.leaf for one in self.found.changes}
        for place, leaf in enumerate(one for one in all_leaves if one not in changed):
            self._leaf(leaf, place % 2 == 0)
        self._axes()
        return self.found

    def more(self, numbers: Sequence[Leaf]) -> list[Change]:
        """Changes of these numbers beside those that are there."""
        count = len(self.found.changes)
        for place, leaf in enumerate(numbers):
            self._leaf(leaf, place % 2 == 0)
        return self.found.changes[count:]

    def _shrink(self, all_leaves: Sequence[Leaf]) -> None:
        """A smaller model of the same kind, to begin with: narrower, then with fewer layers."""
        wide = [one for one in all_leaves if isinstance(one.value, int) and one.value >= _WIDE]
        wide.sort(key=lambda one: one.value)
        sides = {side for array in self.inputs.values() for side in array.shape}
        widths = [one for one in wide if one.value not in sides]  # no side of an image
        groups = (wide, widths, wide[:-1], widths[:-1], *([one] for one in reversed(widths)))
        for group, divisor in itertools.product(groups, _DIVISORS):
            smaller = [Change(one, int(one.value) // divisor, {}) for one in group]  # type: ignore[arg-type]
            if group and self._begins_with(smaller):
                break
        changed = {one.leaf for one in self.found.changes}
        for leaf in all_leaves:
            if isinstance(leaf.value, int) and _DEEP <= leaf.value < _WIDE and leaf not in changed:
                tensors = len(self.state.module.state_dict())
                self._begins_with([Change(leaf, leaf.value // _DEEP + 1, {})], tensors)

    def _begins_with(self, changes: list[Change], tensors: int | None = None) -> bool:
        """Take changes if the original does, and if it then has fewer tensors than these."""
        made = built(self.construction, self.inputs, (*self.found.changes, *changes), self.shown)
        if made is None or (tensors is not None and len(made.module.state_dict()) >= tensors):
            return False
        self.found.changes += changes
        self.state = alive(made)
        return True

    def _leaf(self, leaf: Leaf, upwards: bool) -> None:
        values = candidates(leaf, upwards)
        if values and self.read is not None and not self.read.has(leaf):
            self.found.idle.append(leaf)
            return
        taken = 0
        # A window has no effect where it is wider than an input is long: the least values show it.
        least = sorted(values, key=str if isinstance(leaf.value, tuple) else float)[:2]  # type: ignore[arg-type]
        for value in values[:_FEW] if self.big else values:
            if taken and value not in least:
                continue
            for axes in self._axes_for(leaf, value):
                tried = self._tried(Change(leaf, value, axes))
                if tried is None:
                    continue
                taken += 1
                if tried:
                    return
                break
        if values:
            (self.found.idle if taken else self.found.refused).append(leaf)

    def _axes_for(self, leaf: Leaf, value: Value) -> Iterator[dict[Axis, int]]:
        """Sizes of input axes that may belong to another value of a number: fixed ones first."""
        yield {}
        old = leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
        new = value if isinstance(value, tuple) else (value,)
        pairs = [
            (one, other)
            for one, other in zip(old, new, strict=True)
            if isinstance(one, int) and isinstance(other, int) and one > 1
        ]
        every = [
            Axis(name, axis)
            for name, array in self.state.inputs.items()
            for axis in range(array.ndim)
        ]
        for axes in (self.fixed, every):
            sizes = {one: int(self.state.inputs[one.name].shape[one.axis]) for one in axes}
            yield from self._alike(pairs, sizes)

    @staticmethod
    def _alike(
        pairs: Sequence[tuple[int, int]], sizes: Mapping[Axis, int]
    ) -> Iterator[dict[Axis, int]]:
        """Axes that are as long as a number, or a multiple of it, with what they become beside it."""
        for one, other in dict.fromkeys(pairs):
            same = {axis: other for axis, size in sizes.items() if size == one}
            if same:
                yield same
            for axis in same if len(same) > 1 else ():
                yield {axis: other}
            several = {axis: size // one * other for axis, size in sizes.items() if size % one == 0}
            if several and several != same:
                yield several

    def _axes(self) -> None:
        """Fixed axes for themselves: images of another size."""
        touched = {axis for one in self.found.changes for axis in one.axes}
        left = [one for one in self.fixed if one not in touched]
        sizes = {one: int(self.state.inputs[one.name].shape[one.axis]) for one in left}
        while left:
            axis = left.pop(0)
            alike = [one for one in left if one.name == axis.name and sizes[one] == sizes[axis]]
            for group in ([axis], [axis, *alike]) if alike else ([axis],):
                if self._axis(group, sizes[axis]):
                    left = [one for one in left if one not in group]
                    break
            else:
                self.found.refused_axes.append(axis)

    def _axis(self, group: Sequence[Axis], size: int) -> bool:
        half = size + size // 2 if size % 2 == 0 else 0
        others = (size // 2, half, size + 1) if self.big else (half, 2 * size, size + 1, size // 2)
        for other in dict.fromkeys(others):
            if other > 1 and self._tried(Change(None, other, dict.fromkeys(group, other))):
                return True
        return False

    def _tried(self, change: Change) -> bool | None:
        """Take a change, if it has an effect; None where the original refuses it."""
        made = built(self.construction, self.inputs, (*self.found.changes, change), self.shown)
        if made is None:
            return None
        if not change.axes and _shapes(made.module) == _shapes(self.state.module):
            made.module.load_state_dict(self.state.module.state_dict())
            made = replace(made, outputs=run(made.module, made.inputs))
            if _equal(made.outputs, self.state.outputs):
                return False
        else:
            made = alive(made)
        self.state = made
        self.found.changes.append(change)
        return True


def _shapes(module: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in module.state_dict().items()}


def _equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(
        one.shape == other.shape and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
        for one, other in zip(some, others, strict=True)
    )
