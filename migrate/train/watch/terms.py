"""The size of the terms of a loss: those of PPO cancel, and rounding is relative to the terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_REDUCTIONS = (torch.mean, torch.sum, torch.Tensor.mean, torch.Tensor.sum)
# Two programs that round the terms of a sum once differ by this much of them.
_ROUNDING = 2.0**-23
# A loss near zero counts as this part of its largest derivative: a step of the weights moves it so far.
_OF_SLOPE = 0.1


def size_of_terms(loss: Callable[[], torch.Tensor]) -> float:
    """Return how large a loss would be if no term of its sums and means canceled another one.

    Each sum or mean to one number counts with the absolute values of its terms, times the loss's
    derivative with respect to it. A loss without such sums has its own size.
    """
    return _terms(loss)[1]


def rounding_of_loss(loss: Callable[[], torch.Tensor], parameters: Iterable[torch.Tensor]) -> float:
    """Return the rounding of a loss's terms in float32, relative to the loss.

    Args:
        loss: computes the loss.
        parameters: what is trained. A loss near zero counts as a part of its largest derivative.
    """
    value, size = _terms(loss)
    gradients = torch.autograd.grad(value, [*parameters], allow_unused=True)
    slope = max((float(g.abs().max()) for g in gradients if g is not None and g.numel()), default=0)
    least = max(abs(float(value.detach())), _OF_SLOPE * slope)
    return _ROUNDING * size / least if least else 0.0


def _terms(loss: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    """Return a loss, and the size of its terms."""
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
        return value, own
    derivatives = torch.autograd.grad(
        value, [result for result, _ in seen], allow_unused=True, retain_graph=True
    )
    sizes = [
        abs(float(d)) * size
        for d, (_, size) in zip(derivatives, seen, strict=True)
        if d is not None
    ]
    return value, max(own, sum(sizes))


def _is_trained_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad
