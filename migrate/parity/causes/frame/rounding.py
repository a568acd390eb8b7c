"""Round tensors to narrower dtypes also where the truth's run widens all of them."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes


def rounded_to(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values that it has in that dtype, in the tensor's own."""
    if not tensor.is_floating_point():
        return tensor
    with _disable_current_modes():
        return tensor.to(dtype).to(tensor.dtype)
