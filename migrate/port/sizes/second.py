"""A second configuration of the original, in which as many of its numbers are others as it takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from converters.graph.recording.libraries import is_user_file
from converters.graph.writing.original.names import source_file
from migrate.port.sizes.construction import Construction
from migrate.port.sizes.instance import Arrays, Axis, SizeChange, SizedModel, alive, built, run
from migrate.port.sizes.leaves import Leaf, Value, candidates, choices, leaves
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
        untried: numbers of which no other value is tried.
        refused_axes: fixed axes of inputs that the original takes at their size only.
        forms: choices of True or False with which the original is another model.
    """

    changes: list[SizeChange] = field(default_factory=list)
    idle: list[Leaf] = field(default_factory=list)
    refused: list[Leaf] = field(default_factory=list)
    untried: list[Leaf] = field(default_factory=list)
    refused_axes: list[Axis] = field(default_factory=list)
    forms: list[Leaf] = field(default_factory=list)


def second(
    construction: Construction, base: SizedModel, fixed: Sequence[Axis], shown: str
) -> Second:
    """Look for other values of the numbers that the model was made with, and other sizes of fixed axes.

    Args:
        construction: construction of the ported model.
        base: the ported model, built again.
        fixed: axes of inputs that the recording has fixed.
        shown: the model, for messages.
    """
    return _SizeSearch(construction, base.inputs, tuple(fixed), shown, alive(base)).run()


def beside(
    construction: Construction,
    base: SizedModel,
    good: Sequence[SizeChange],
    numbers: Sequence[Leaf],
    shown: str,
) -> list[SizeChange]:
    """Other values of numbers that the original takes beside these changes, with an effect."""
    state = built(construction, base.inputs, tuple(good), shown) if numbers else None
    if state is None:
        return []
    search = _SizeSearch(construction, base.inputs, (), shown, alive(state))
    search.found.changes += good
    return search.more(numbers)


class _SizeSearch:
    def __init__(
        self,
        construction: Construction,
        inputs: Arrays,
        fixed: tuple[Axis, ...],
        shown: str,
        state: SizedModel,
    ) -> None:
        self.construction = construction
        self.inputs, self.fixed, self.shown = inputs, fixed, shown
        self.state = state
        self.found = Second()
        count = sum(parameter.numel() for parameter in state.module.parameters())
        self.big = count > _BIG
        self.read = reads(construction, inputs)

    def run(self) -> Second:
        all_leaves = leaves(self.construction.arguments)
        if self.big:
            self._shrink(all_leaves)
        changed = {change.leaf for change in self.found.changes}
        for place, leaf in enumerate(leaf for leaf in all_leaves if leaf not in changed):
            self._leaf(leaf, place % 2 == 0)
        self._axes()
        if is_user_file(source_file(self.construction.make)):
            self._choices()
        return self.found

    def _choices(self) -> None:
        """Try the other value of each choice, at the recorded size."""
        arguments = choices(self.construction.arguments)
        base = built(self.construction, self.inputs, (), self.shown) if arguments else None
        for leaf in arguments if base is not None else ():
            assert base is not None
            other = SizeChange(leaf, not leaf.value, {})
            there = built(self.construction, self.inputs, (other,), self.shown)
            if there is None:
                self.found.refused.append(leaf)
            elif is_idle(there, base):
                self.found.idle.append(leaf)
            else:
                self.found.forms.append(leaf)

    def more(self, numbers: Sequence[Leaf]) -> list[SizeChange]:
        """Changes of these numbers beside those that are there."""
        count = len(self.found.changes)
        for place, leaf in enumerate(numbers):
            self._leaf(leaf, place % 2 == 0)
        return self.found.changes[count:]

    def _shrink(self, all_leaves: Sequence[Leaf]) -> None:
        """A smaller model of the same kind, to begin with: narrower, then with fewer layers."""
        wide = [leaf for leaf in all_leaves if isinstance(leaf.value, int) and leaf.value >= _WIDE]
        wide.sort(key=lambda leaf: leaf.value)
        sides = {side for array in self.inputs.values() for side in array.shape}
        widths = [leaf for leaf in wide if leaf.value not in sides]  # no side of an image
        groups = (wide, widths, wide[:-1], widths[:-1], *([leaf] for leaf in reversed(widths)))
        for group, divisor in itertools.product(groups, _DIVISORS):
            smaller = [SizeChange(leaf, int(leaf.value) // divisor, {}) for leaf in group]  # type: ignore[arg-type]
            if group and self._begins_with(smaller):
                break
        changed = {change.leaf for change in self.found.changes}
        for leaf in all_leaves:
            if isinstance(leaf.value, int) and _DEEP <= leaf.value < _WIDE and leaf not in changed:
                tensors = len(self.state.module.state_dict())
                self._begins_with([SizeChange(leaf, leaf.value // _DEEP + 1, {})], tensors)

    def _begins_with(self, changes: list[SizeChange], tensors: int | None = None) -> bool:
        """Take changes if the original does, and if it then has fewer tensors than these."""
        instance = built(
            self.construction, self.inputs, (*self.found.changes, *changes), self.shown
        )
        if instance is None or (
            tensors is not None and len(instance.module.state_dict()) >= tensors
        ):
            return False
        self.found.changes += changes
        self.state = alive(instance)
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
                tried = self._tried(SizeChange(leaf, value, axes))
                if tried is None:
                    continue
                taken += 1
                if tried:
                    return
                break
        if not values:
            self.found.untried.append(leaf)
        else:
            (self.found.idle if taken else self.found.refused).append(leaf)

    def _axes_for(self, leaf: Leaf, value: Value) -> Iterator[dict[Axis, int]]:
        """Sizes of input axes that may belong to another value of a number: fixed ones first."""
        yield {}
        old = leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
        new = value if isinstance(value, tuple) else (value,)
        pairs = [
            (first, other)
            for first, other in zip(old, new, strict=True)
            if isinstance(first, int) and isinstance(other, int) and first > 1
        ]
        every = [
            Axis(name, axis)
            for name, array in self.state.inputs.items()
            for axis in range(array.ndim)
        ]
        for axes in (self.fixed, every):
            sizes = {axis: int(self.state.inputs[axis.name].shape[axis.axis]) for axis in axes}
            yield from self._alike(pairs, sizes)

    @staticmethod
    def _alike(
        pairs: Sequence[tuple[int, int]], sizes: Mapping[Axis, int]
    ) -> Iterator[dict[Axis, int]]:
        """Return the axes that are as long as a number, or a multiple of it, with their new lengths."""
        for first, other in dict.fromkeys(pairs):
            same = {axis: other for axis, size in sizes.items() if size == first}
            if same:
                yield same
            for axis in same if len(same) > 1 else ():
                yield {axis: other}
            several = {
                axis: size // first * other for axis, size in sizes.items() if size % first == 0
            }
            if several and several != same:
                yield several

    def _axes(self) -> None:
        """Fixed axes for themselves: images of another size."""
        touched = {axis for change in self.found.changes for axis in change.axes}
        left = [axis for axis in self.fixed if axis not in touched]
        sizes = {axis: int(self.state.inputs[axis.name].shape[axis.axis]) for axis in left}
        while left:
            axis = left.pop(0)
            alike = [
                other for other in left if other.name == axis.name and sizes[other] == sizes[axis]
            ]
            for group in ([axis], [axis, *alike]) if alike else ([axis],):
                if self._axis(group, sizes[axis]):
                    left = [axis for axis in left if axis not in group]
                    break
            else:
                self.found.refused_axes.append(axis)

    def _axis(self, group: Sequence[Axis], size: int) -> bool:
        half = size + size // 2 if size % 2 == 0 else 0
        others = (size // 2, half, size + 1) if self.big else (half, 2 * size, size + 1, size // 2)
        for other in dict.fromkeys(others):
            if other > 1 and self._tried(SizeChange(None, other, dict.fromkeys(group, other))):
                return True
        return False

    def _tried(self, change: SizeChange) -> bool | None:
        """Take a change, if it has an effect, or None if the original refuses it."""
        instance = built(self.construction, self.inputs, (*self.found.changes, change), self.shown)
        if instance is None:
            return None
        if not change.axes and _shapes(instance.module) == _shapes(self.state.module):
            instance.module.load_state_dict(self.state.module.state_dict())
            instance = replace(instance, outputs=run(instance.module, instance.inputs))
            if _equal(instance.outputs, self.state.outputs):
                return False
        else:
            instance = alive(instance)
        self.state = instance
        self.found.changes.append(change)
        return True


def is_idle(instance: SizedModel, base: SizedModel) -> bool:
    """Whether a change had no effect on the shapes of what a model holds, and none on its outputs."""
    return _shapes(instance.module) == _shapes(base.module) and _equal(
        instance.outputs, base.outputs
    )


def _shapes(module: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(
        left.shape == other.shape and np.array_equal(left, other, equal_nan=left.dtype.kind in "fc")
        for left, other in zip(some, others, strict=True)
    )
