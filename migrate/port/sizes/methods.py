"""Further methods of a port at the second size that its forward was proven at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from converters.graph.merging.methods import as_forward
from migrate.port.sizes.distance import distance
from migrate.port.sizes.flax import PortRefusesError
from migrate.port.sizes.instance import Arrays, Axis, Change, Instance, resized, run
from migrate.port.sizes.question import Question


def method_apart(
    question: Question,
    package: Any,
    made: Instance,
    changes: Sequence[Change],
    method: str,
    inputs: Arrays,
) -> str:
    """What is wrong with a method of the port at another size; "" where it gives what the original gives.

    Args:
        question: the port and its original.
        package: of the port.
        made: the original at this size.
        changes: what is other there.
        method: its name.
        inputs: what it was recorded with.
    """
    there = _taken(made, method, inputs, changes)
    if there is None:
        return "takes no inputs there that were tried"
    try:
        found = question.port_at(package, question.settings(made), made).outputs(
            (method, there.inputs)
        )
    except PortRefusesError as error:
        return f"raises {error}"
    apart, limit = distance(found, there)
    return "" if apart <= limit else f"is {apart:.1e} from the original's"


def _taken(
    made: Instance, method: str, inputs: Arrays, changes: Sequence[Change]
) -> Instance | None:
    """The original with the first inputs that its method takes at this size."""
    for given in _resized(inputs, changes):
        try:
            with as_forward(made.module, method):
                return replace(made, inputs=given, outputs=run(made.module, given))
        except Exception:  # whatever a method of the user's raises for inputs of another size
            continue
    return None


def _resized(inputs: Arrays, changes: Sequence[Change]) -> Iterator[Arrays]:
    """Inputs whose axes are as long as numbers that changed, at the new ones; else as they are."""
    pairs: dict[int, int] = {}
    for one in changes:
        if one.leaf is None:
            continue
        old = one.leaf.value if isinstance(one.leaf.value, tuple) else (one.leaf.value,)
        new = one.value if isinstance(one.value, tuple) else (one.value,)
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
