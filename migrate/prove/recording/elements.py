"""The elements of parameters that rounding can move as far as the optimizer: see `record.noise.elements`.

Such an element's value says nothing about the rewrite. It is left out, and the rest of its parameter judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

# An element whose divisor is no more than so many times what rounding did to the gradients of its parameter,
# in the root of their mean square. That is a distance of two runs, as the sides are two: were all elements
# moved alike, one of 16,000 that are divided by more would take its step in the other direction.
_TIMES = 4.0
_LEAST, _GRADIENT = "least ", "gradient "


def save(
    least: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor], path: Path
) -> None:
    """Write what `record.noise.elements` has of a step."""
    tensors = {_LEAST + name: tensor for name, tensor in least.items()}
    tensors |= {_GRADIENT + name: tensor for name, tensor in gradients.items()}
    save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, path)


def roundings(first: Path, second: Path) -> dict[str, float]:
    """By how much rounding moved the gradient of each parameter, relative to it: of two runs of a program."""
    one, other = load_file(first), load_file(second)
    found = {}
    for name in one.keys() & other.keys():
        if name.startswith(_GRADIENT) and one[name].shape == other[name].shape:
            norm = torch.linalg.vector_norm(one[name].double()).item()
            apart = torch.linalg.vector_norm((one[name] - other[name]).double()).item()
            if norm and apart < norm:
                found[name.removeprefix(_GRADIENT)] = apart / norm
    return found


def moved(path: Path | None, rounding: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """The elements that are left out: a mask for each parameter that has any.

    Args:
        path: of what was kept of a step; None: nothing.
        rounding: as `roundings` returns it.
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
