"""Round tensors to narrower dtypes, even where the truth's run widens them all."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes


def rounded_to(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values rounded to a dtype, kept in the tensor's own dtype."""
    if not tensor.is_floating_point():
        return tensor
    with _disable_current_modes():
        return tensor.to(dtype).to(tensor.dtype)
