"""The size of the terms of a loss: those of PPO cancel, and rounding is relative to the terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_REDUCTIONS = (torch.mean, torch.sum, torch.Tensor.mean, torch.Tensor.sum)


def size_of_terms(loss: Callable[[], torch.Tensor]) -> float:
    """Return how large a loss would be if no term of its sums and means canceled another one.

    Each sum or mean to one number counts with the absolute values of its terms, times the loss's
    derivative with respect to it. A loss without such sums has its own size.
    """
    seen: list[tuple[torch.Tensor, float]] = []

    class Watched(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if func in _REDUCTIONS and _is_trained_number(result) and args:
                terms = args[0].detach().abs()
                seen.append((result, float(func(terms, *args[1:], **(kwargs or {})))))
            return result

    with Watched():
        value = loss()
    own = abs(float(value.detach()))
    if not seen:
        return own
    derivatives = torch.autograd.grad(value, [result for result, _ in seen], allow_unused=True)
    sizes = [
        abs(float(d)) * size
        for d, (_, size) in zip(derivatives, seen, strict=True)
        if d is not None
    ]
    return max(own, sum(sizes))


def _is_trained_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad
