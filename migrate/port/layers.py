"""`layers.py` of a port whose layers are scanned: weights of the layers, stacked and apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from migrate.parity.sides.shapes import shapes_in
from migrate.port.errors import PortError
from migrate.port.package import package_of
from migrate.port.sizes.flax import nested
from migrate.port.weights import PARAMS

LAYERS = "layers.py"


def layers_text(stacks: Sequence[Any]) -> str:
    """The source of `layers.py`.

    Args:
        stacks: lists of layers whose weights are stacked (`converters.graph`).
    """
    rows = "".join(
        f"    (r{stack.path!r}, ({_runs(stack.runs)})),\n".replace("\\\\", "\\") for stack in stacks
    )
    return _LAYERS.replace("STACKED_LISTS\n", rows)


def require_stackable(folder: Path) -> None:
    """Refuse a port whose layers have weights of different shapes, or values that change their form.

    Raises:
        PortError: see above.
    """
    import jax

    try:
        with package_of(folder) as package:
            if (folder / PARAMS).exists():
                shapes = {
                    name: jax.ShapeDtypeStruct(shape, "float32")
                    for name, shape in shapes_in(folder / PARAMS).items()
                }
                jax.eval_shape(package.stack_layers, nested(shapes))
            package.model_paths()
    except Exception as error:  # whatever Flax, JAX or the source raise
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise PortError(
            f"--scan: the layers cannot be stacked ({what})", "leave --scan out"
        ) from error


def _runs(runs: Iterable[Any]) -> str:
    return "".join(f"({run.first}, {run.period}, {run.count}), " for run in runs).rstrip(" ")


_LAYERS = '''\
"""Weights of the layers: stacked, as the model has them, and apart, as files have them."""

import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

# Path of each list of layers → its runs: number of the first layer, how many layers repeat together, how
# often (0: as many as there are). Each run has the weights of one group of layers, stacked along axis 0.
STACKED = (
STACKED_LISTS
)


def stack_layers(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables with the weights of repeated layers stacked, as the model has them.

    Raises:
        ValueError: the weights of a layer are missing.
    """
    arrays = flat(variables)
    for path, runs in STACKED:
        numbers = _numbers(path, arrays)
        layers: dict[str, dict[int, dict[int, Any]]] = {}
        for name, (above, number, below) in numbers.items():
            place, turn = _stacked(runs, number)
            layers.setdefault(f"{above}{place}{below}", {})[turn] = arrays.pop(name)
        for name, turns in layers.items():
            place = _number(path, name)
            count = _count(runs, place)
            if sorted(turns) != list(range(count or len(turns))):
                raise ValueError(f"{name}: the weights of a layer are missing")
            parts = [turns[turn] for turn in sorted(turns)]
            arrays[name] = parts[0] if count == 1 else jnp.stack(parts)
    return nested(arrays)


def unstack_layers(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables with the weights of each layer apart: the inverse of `stack_layers`."""
    arrays = flat(variables)
    for path, runs in reversed(STACKED):
        stacked = {name: (arrays.pop(name), parts) for name, parts in _numbers(path, arrays).items()}
        for array, (above, place, below) in stacked.values():
            count = _count(runs, place)
            for turn in range(count or len(array)):
                number = _layer(runs, place, turn)
                arrays[f"{above}{number}{below}"] = array if count == 1 else array[turn]
    return nested(arrays)


def _numbers(path: str, names: Mapping[str, Any]) -> dict[str, tuple[str, int, str]]:
    """Name of each array of a list → what is before the number of its layer, the number, and the rest."""
    matches = {name: re.match(rf"(\\w+/{path}_)(\\d+)(/.*)", name) for name in names}
    return {name: (match[1], int(match[2]), match[3]) for name, match in matches.items() if match}


def _number(path: str, name: str) -> int:
    return _numbers(path, {name: None})[name][1]


def _stacked(runs: tuple[tuple[int, int, int], ...], number: int) -> tuple[int, int]:
    """Place of a layer in the model's list, and its place in the stack."""
    place = 0
    for first, period, count in runs:
        if not count or number < first + period * count:
            return place + (number - first) % period, (number - first) // period
        place += period
    raise ValueError(f"layer {number}: the model has fewer layers")


def _count(runs: tuple[tuple[int, int, int], ...], place: int) -> int:
    """How many layers are stacked at a place of the model's list; 0: as many as there are."""
    for _, period, count in runs:
        if place < period:
            return count
        place -= period
    raise ValueError(f"layer {place}: the model has fewer layers")


def _layer(runs: tuple[tuple[int, int, int], ...], place: int, turn: int) -> int:
    """Number of a layer, given its places in the model's list and in the stack."""
    for first, period, _ in runs:
        if place < period:
            return first + turn * period + place
        place -= period
    raise ValueError(f"layer {place}: the model has fewer layers")


def flat(variables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Path → array: "params/head/kernel"."""
    arrays: dict[str, Any] = {}
    for name, value in variables.items():
        path = f"{above}{name}"
        arrays |= flat(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return arrays


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of a model: the inverse of `flat`."""
    variables: dict[str, Any] = {}
    for path, array in arrays.items():
        *above, name = path.split("/")
        node = variables
        for step in above:
            node = node.setdefault(step, {})
        node[name] = array
    return variables
'''
