"""Give the norms of the original, which runs on the CPU, the accuracy that they have on an accelerator.

torch's kernel for the L2 norm of float32 on the CPU adds the squares one after the other. At 1.6 million
elements it is off by 4e-5, at 39 million by 2e-3 (measured against float64, torch 2.9). CUDA and XLA add in
a tree, and are off by 1e-7. `clip_grad_norm_` divides the gradients by this number, so the original would
train differently than on a GPU. Here the squares are added in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch


def install() -> None:
    """Replace the norms of `torch.linalg`, with the functions built on them, and `torch._foreach_norm`."""
    torch.linalg.vector_norm = _accurate(torch.linalg.vector_norm)
    torch.linalg.norm = _accurate(torch.linalg.norm)
    each: Any = torch._foreach_norm

    @functools.wraps(each)
    def foreach_norm(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        norms = each(tensors, *args, **kwargs)
        if args[1:] or kwargs.get("dtype") is not None:
            return norms
        return tuple(
            each([tensor.double()], *args, **kwargs)[0].to(norm.dtype) if _is_off(tensor) else norm
            for tensor, norm in zip(tensors, norms, strict=True)
        )

    torch._foreach_norm = foreach_norm


def _accurate(norm: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(norm)
    def accurate(*args: Any, **kwargs: Any) -> Any:
        tensor = args[0] if args else None
        chosen = kwargs.get("dtype") is not None or kwargs.get("out") is not None
        if chosen or not isinstance(tensor, torch.Tensor) or not _is_off(tensor):
            return norm(*args, **kwargs)
        return norm(tensor.double(), *args[1:], **kwargs).to(tensor.dtype)

    return accurate


def _is_off(tensor: torch.Tensor) -> bool:
    # float16 and bfloat16 are added in float32 by the same kernel. XLA has no kernel of this kind, and on
    # a TPU no float64. Where the shims answer for CUDA a tensor of the CPU calls itself one of CUDA.
    return tensor.device.type in ("cpu", "cuda") and tensor.dtype in _ADDED_IN_FLOAT32


_ADDED_IN_FLOAT32 = (torch.float32, torch.float16, torch.bfloat16)
