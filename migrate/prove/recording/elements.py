"""Elements of parameters that rounding can move as far as the optimizer: see `record.noise.elements`.

The value of such an element proves nothing about the rewrite. It is left out, and the rest of its parameter
judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

# An element is left out if its divisor is at most this many times the change of its parameter's gradients by
# rounding, in the root of their mean square. That is a distance of two runs, as the sides are two. If all
# elements moved alike, one in 16,000 with larger divisors would take its step in the other direction.
_TIMES = 4.0
_LEAST, _GRADIENT = "least ", "gradient "


def save(
    least: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor], path: Path
) -> None:
    """Write the elements of a step, from `record.noise.elements`."""
    tensors = {_LEAST + name: tensor for name, tensor in least.items()}
    tensors |= {_GRADIENT + name: tensor for name, tensor in gradients.items()}
    save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, path)


def roundings(first: Path, second: Path) -> dict[str, float]:
    """Relative movement of each parameter's gradient by rounding, between two runs of a program."""
    first_elements, other = load_file(first), load_file(second)
    movements = {}
    for name in first_elements.keys() & other.keys():
        if name.startswith(_GRADIENT) and first_elements[name].shape == other[name].shape:
            norm = torch.linalg.vector_norm(first_elements[name].double()).item()
            apart = torch.linalg.vector_norm((first_elements[name] - other[name]).double()).item()
            if norm and apart < norm:
                movements[name.removeprefix(_GRADIENT)] = apart / norm
    return movements


def moved(path: Path | None, rounding: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """Return the elements to leave out: a mask for each parameter that has any.

    Args:
        path: file of the elements of a step; None: there is none.
        rounding: result of `roundings`.
    """
    if path is None or not rounding:
        return {}
    masks = {}
    for name, tensor in load_file(path).items():
        parameter = name.removeprefix(_LEAST)
        if name.startswith(_LEAST) and parameter in rounding:
            mask = tensor.float() <= _TIMES * rounding[parameter]
            if mask.any():
                masks[parameter] = mask
    return masks
