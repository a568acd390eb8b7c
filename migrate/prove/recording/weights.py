"""Write and read the weights that a rank keeps, and measure the distance of two sets of weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from migrate.prove.recording.shards import local

# Some gradients are mathematically zero: of a bias before a batch normalization, of the key bias of an
# attention. In float32 they are rounding noise, which Adam divides by itself: such a parameter walks at
# random, on a GPU too, and changes no output. Measured over 20 steps of a small attention and convolution
# model: 1.4e-9 and 2.3e-8 of the global norm; every other parameter 7e-3 or more.
NOISE_SHARE = 1e-6
# Attention often has one bias for query, key and value, of which only the second third is such a bias.
_THIRDS = 3
_SHARES = "gradient shares"


def parts(tensor: torch.Tensor) -> int:
    """Return the number of equal parts of a parameter's gradient, to separate noise from the rest."""
    return _THIRDS if tensor.dim() == 1 and tensor.numel() % _THIRDS == 0 else 1


def save(
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    shares: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Write tensors of any device to a safetensors file; it appears complete or not at all.

    Args:
        tensors: tensors by name; of a DTensor, this rank's part is written.
        path: path of the file.
        shares: for each parameter by name, and each of its `parts`: the largest share that the gradient
            ever had in the global gradient norm, from 0 to 1.
    """
    temporary = path.with_suffix(".partial")
    # Copied: safetensors refuses tensors that share memory.
    save_file(
        {
            name: local(tensor).detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        },
        temporary,
        metadata={_SHARES: json.dumps(shares or {})},
    )
    os.replace(temporary, path)


def distances(
    original: Path, rewritten: Path, left_out: Mapping[str, torch.Tensor] | None = None
) -> dict[str, float]:
    """Return the relative L2 distance of each tensor: |rewritten - original| / |original|, in float64.

    It is infinite for a tensor with another shape, with a NaN on one side only, or missing in one file. A
    part that is noise, in a parameter that as a whole is not, is left out, and so are the elements of these
    masks.
    """
    theirs, ours = load_file(original), load_file(rewritten)
    for name, mask in (left_out or {}).items():
        for tensor in (theirs.get(name), ours.get(name)):
            if tensor is not None and tensor.shape == mask.shape:
                tensor[mask] = 0
    whole = noise(original, rewritten)
    for name, noisy in noise_parts(original, rewritten).items():
        both = name not in whole and name in theirs and name in ours
        if both and theirs[name].shape == ours[name].shape:
            for part in noisy:
                for tensor in (theirs[name], ours[name]):
                    tensor.view(parts(tensor), -1)[part] = 0
    return {
        name: _distance(theirs[name], ours[name])
        if name in theirs and name in ours
        else float("inf")
        for name in sorted(theirs.keys() | ours.keys())
    }


def noise(original: Path, rewritten: Path) -> frozenset[str]:
    """Return the parameters that moved, on either side, only by the rounding of their gradients."""
    shares = _shares(original, rewritten)
    noisy = noise_parts(original, rewritten)
    return frozenset(name for name in noisy if max(shares[name]) < NOISE_SHARE)


def noise_parts(original: Path, rewritten: Path) -> dict[str, list[int]]:
    """Return the parts of each parameter that are noise; parameters without such parts are left out."""
    shares = _shares(original, rewritten)
    numbers = {
        name: [part for part, share in enumerate(each) if 0.0 < share < NOISE_SHARE]
        for name, each in shares.items()
    }
    return {name: noisy for name, noisy in numbers.items() if noisy}


def _shares(*paths: Path) -> dict[str, list[float]]:
    """Larger shares of several files, for the parameters that all have."""
    files = []
    for path in paths:
        with safe_open(path, framework="pt") as file:
            files.append(json.loads(file.metadata()[_SHARES]))
    names = set.intersection(*(set(shares) for shares in files))
    return {
        name: [max(each) for each in zip(*(shares[name] for shares in files), strict=False)]
        for name in sorted(names)
    }


def _distance(original: torch.Tensor, rewritten: torch.Tensor) -> float:
    if original.shape != rewritten.shape:
        return float("inf")
    wide = torch.complex128 if original.is_complex() else torch.float64
    original, rewritten = original.to(wide), rewritten.to(wide)
    if torch.equal(original.isnan(), rewritten.isnan()):
        original, rewritten = original.nan_to_num(), rewritten.nan_to_num()
    difference = torch.linalg.vector_norm(rewritten - original).item()
    if difference == 0.0:
        return 0.0
    norm = torch.linalg.vector_norm(original).item()
    distance = difference / norm if norm else float("inf")
    return float("inf") if distance != distance else distance
