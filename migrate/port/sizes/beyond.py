"""Sizes beyond the bounds of a recording: some bounds are of a branch that gives the same on both sides."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from converters.graph.recording.guards import Bound
from migrate.port.sizes.distance import distance
from migrate.port.sizes.flax import PortRefusesError, outputs_of
from migrate.port.sizes.instance import Arrays, Axis, SizedModel, alive, resized, run

# A longer input would cost more than the bound is worth.
_MOST = 1024


def lifted(port: Any, package: Any, folder: Path, module: Any, inputs: Arrays) -> tuple[str, ...]:
    """Return the texts of bounds beyond which the port still agrees with the original.

    Args:
        port: what the compiler gave; its source asserts none of its bounds.
        package: package of the port.
        folder: folder of the port.
        module: the original.
        inputs: what it was recorded with.
    """
    asked = [bound for bound in port.bounds if list(_beyond(bound))]
    if not asked:
        return ()
    own = copy.deepcopy(module).float().eval()
    base = alive(SizedModel(own, {}, inputs, run(own, inputs)))
    names = port.model_class, port.config_class
    texts = []
    for bound in asked:
        agree, refused = 0, True
        for size in _beyond(bound):
            side = bound.sides[0]
            longer = resized(inputs, _as_long(inputs, Axis(side.name, side.axis), size))
            try:
                wanted = SizedModel(own, {}, longer, run(own, longer))
            except Exception:  # the original takes no such input, so that the port need not
                continue
            try:
                refused = False
                outputs = outputs_of(package, folder, names, {}, base.module, longer)
            except PortRefusesError:
                agree = -1
                break
            apart, limit = distance(outputs, wanted)
            if not apart <= limit:
                agree = -1
                break
            agree += 1
        # An operator's least size is the original's own affair, if it takes no less.
        least = refused and not bound.of_model and ">=" in bound.condition
        if agree > 0 or least:
            texts.append(bound.text)
    return tuple(texts)


def _beyond(bound: Bound) -> Iterator[int]:
    """Sizes outside of a bound of one axis."""
    if len(bound.sides) != 1 or len(bound.numbers) != 1 or bound.numbers[0] > _MOST:
        return
    (number,) = bound.numbers
    if bound.condition.endswith(f"<= {number}"):
        yield from (number + 1, 2 * number + 3)
    elif bound.condition.endswith(f">= {number}"):
        yield from range(number - 1, max(1, number - 4), -1)


def _as_long(inputs: Arrays, axis: Axis, size: int) -> dict[Axis, int]:
    """The axis, and those of other inputs that are as long as it in the same place (a mask)."""
    old = inputs[axis.name].shape[axis.axis]
    return {
        Axis(name, axis.axis): size
        for name, array in inputs.items()
        if array.ndim > axis.axis and array.shape[axis.axis] == old
    }
