"""Write and read the weights that a rank keeps, and measure how far two sets of them are apart."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write tensors of any device to a safetensors file; it appears complete or not at all."""
    temporary = path.with_suffix(".partial")
    # Copied: safetensors refuses tensors that share memory.
    save_file(
        {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        },
        temporary,
    )
    os.replace(temporary, path)


def distances(original: Path, rewritten: Path) -> dict[str, float]:
    """Relative L2 distance of each tensor: |rewritten - original| / |original|, in float64.

    Infinite for a tensor of other shape, with a NaN on one side only, or that one file lacks.
    """
    theirs, ours = load_file(original), load_file(rewritten)
    return {
        name: _distance(theirs[name], ours[name])
        if name in theirs and name in ours
        else float("inf")
        for name in sorted(theirs.keys() | ours.keys())
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
