"""Sums over many tensors, cheap on XLA and exact.

XLA:CPU adds a sum of squares one element after the other, because it computes the squares while it adds.
Squares that are added in pairs first are computed eight at a time. For 10 million parameters in 32 tensors:
20 ms against 3 ms, and closer to float64 (measured, torch_xla 2.9).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from migrate.prove.recording.shards import local

# A power of two. For fewer elements more operations cost more than longer sums.
_FOLDS = 8
_LEAST = 8192


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Convert values to float32, complex numbers with a last dimension of two.

    Of a DTensor, the values are this rank's part. Values of torch_tpu are added on the host: it would
    compile each operation for each shape.
    """
    tensor = local(tensor)
    if tensor.device.type == "tpu":
        tensor = tensor.detach().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.detach().to(torch.float32)


def squares(tensor: torch.Tensor, parts: int = 1) -> torch.Tensor:
    """Sum of squares of each of the equal parts of a tensor along its first dimension."""
    values = wide(tensor).square().reshape(parts, -1)
    return (folded(values) if values.device.type == "xla" else values).sum(1)


def folded(values: torch.Tensor) -> torch.Tensor:
    """Fold rows to an eighth of their length with the same sums, if they are long and divisible."""
    parts, length = values.shape
    folds = math.gcd(length, _FOLDS) if length >= _LEAST else 1
    if folds == 1:
        return values
    values = values.reshape(parts, folds, -1)
    while folds > 1:
        folds //= 2
        values = values[:, :folds] + values[:, folds:]
    return values.reshape(parts, -1)


def all_squares(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Sum of squares of all elements of all tensors.

    The squares of tensors with the same shape are added first. For a transformer of 10 million
    parameters in 98 tensors: 8 ms against 14 ms with `squares` of each (measured, tracing included).
    """
    added: dict[tuple[torch.Size, torch.device], torch.Tensor] = {}
    for values in map(wide, tensors):
        alike = values.shape, values.device
        known = added.get(alike)
        added[alike] = values.square() if known is None else known.addcmul(values, values)
    return stacked([values.sum() for values in added.values()]).sum()


def two_sums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum and sum of squares of each tensor, as rows."""
    plain = stacked([wide(tensor).sum() for tensor in tensors])
    return torch.stack([plain, joined(squares(tensor) for tensor in tensors)], 1)


def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack scalars into one tensor on one device: a model may be on several."""
    return torch.stack([tensor.to(tensors[-1].device) for tensor in tensors])


def joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Join vectors into one, on one device."""
    several = list(tensors)
    return torch.cat([tensor.to(several[-1].device) for tensor in several])
