"""Further methods of a port at the second size that its forward was proven at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from converters.graph.merging.methods import as_forward
from migrate.port.sizes.distance import difference, distance
from migrate.port.sizes.flax import PortRefusesError
from migrate.port.sizes.instance import Arrays, Axis, SizeChange, SizedModel, resized, run
from migrate.port.sizes.question import SizeQuestion


def method_apart(
    question: SizeQuestion,
    package: Any,
    instance: SizedModel,
    changes: Sequence[SizeChange],
    method: str,
    inputs: Arrays,
) -> str:
    """Return what is wrong with a method of the port at another size, or "" if it agrees with the original.

    Args:
        question: the port and its original.
        package: package of the port.
        instance: the original at this size.
        changes: what is other there.
        method: name of the method.
        inputs: what it was recorded with.
    """
    there = _taken(instance, method, inputs, changes)
    if there is None:
        return "takes no inputs there that were tried"
    try:
        outputs = question.port_at(package, question.settings(instance), instance).outputs(
            (method, there.inputs)
        )
    except PortRefusesError as error:
        return str(error)
    apart, limit = distance(outputs, there)
    return "" if apart <= limit else f"gives outputs that {difference(outputs, there, apart)}"


def _taken(
    instance: SizedModel, method: str, inputs: Arrays, changes: Sequence[SizeChange]
) -> SizedModel | None:
    """The original with the first inputs that its method takes at this size."""
    for resized_inputs in _resized(inputs, changes):
        try:
            with as_forward(instance.module, method):
                return replace(
                    instance, inputs=resized_inputs, outputs=run(instance.module, resized_inputs)
                )
        except Exception:  # whatever a method of the user's raises for inputs of another size
            continue
    return None


def _resized(inputs: Arrays, changes: Sequence[SizeChange]) -> Iterator[Arrays]:
    """Inputs whose axes are as long as numbers that changed, at the new ones; else as they are."""
    pairs: dict[int, int] = {}
    for change in changes:
        if change.leaf is None:
            continue
        old = change.leaf.value if isinstance(change.leaf.value, tuple) else (change.leaf.value,)
        new = change.value if isinstance(change.value, tuple) else (change.value,)
        for here, there in zip(old, new, strict=True):
            if isinstance(here, int) and isinstance(there, int) and here > 1:
                pairs.setdefault(here, there)
    axes = {
        Axis(name, axis): pairs[size]
        for name, array in inputs.items()
        for axis, size in enumerate(array.shape)
        if size in pairs
    }
    if axes:
        yield resized(inputs, axes)
        for axis, size in axes.items():
            yield resized(inputs, {axis: size})
    yield inputs
