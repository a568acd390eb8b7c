"""Weights of a JAX model: a flat dict of `/`-joined paths, on disk as safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.ground.errors import ParityError

Weights = dict[str, np.ndarray[Any, Any]]
_SHOWN = 4


def write_weights(weights: Mapping[str, Any], file: Path, api: str) -> None:
    """Write weights as `converters` writes a pytree."""
    from safetensors.numpy import save_file

    arrays = {
        name: np.ascontiguousarray(array).reshape(np.shape(array))
        for name, array in weights.items()
    }
    save_file(arrays, file, metadata={"api": api})


def read_weights(file: Path) -> Weights:
    """Read a pytree that `write_weights` or `migrate weights` wrote.

    Raises:
        ParityError: the file cannot be read.
    """
    from converters import load_pytree
    from converters.errors import ConversionError

    try:
        return flat(load_pytree(file))
    except (ConversionError, OSError) as error:
        raise ParityError(f"{file}: {error}", "name a pytree of migrate weights") from error


def flat(tree: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Leaves of nested dicts by `/`-joined path; positions as text."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{above}/{name}" if above else str(name)
        leaves |= flat(value, path) if isinstance(value, Mapping) else {path: value}
    return leaves


def nested(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Nest the dict of `flat` again; positions stay text."""
    tree: dict[str, Any] = {}
    for path, value in weights.items():
        *above, name = path.split("/")
        node = tree
        for step in above:
            node = node.setdefault(step, {})
        node[name] = value
    return tree


# Number of a layer in a path. Ports have the same expression in their source.
LAYER_NUMBER = r"([_/])\d+"


def numberless(path: str) -> str:
    """Path with `#` for the numbers of layers."""
    return re.sub(LAYER_NUMBER, r"\1#", path)


def require_fit(
    weights: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]], shown: str
) -> None:
    """Require the weights of the model.

    Raises:
        ParityError: lists every kind of difference, with the first few names of each.
    """
    missing = [name for name in wanted if name not in weights]
    surplus = [name for name in weights if name not in wanted]
    misshapen = [
        f"{name} {list(np.shape(weights[name]))} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in weights and tuple(np.shape(weights[name])) != tuple(shape)
    ]
    kinds = {"missing": missing, "surplus": surplus, "misshapen": misshapen}
    said = [f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds.items() if names]
    if said:
        raise ParityError(
            f"{shown}: the pytree does not fit: {', '.join(said)}",
            "convert the weights for this model, or give a mapping file",
        )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    rest = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
