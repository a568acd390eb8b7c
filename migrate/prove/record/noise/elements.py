"""Elements of a parameter that rounding can move as far as the optimizer does.

Adam and similar optimizers divide each element's gradient by the root of its own mean square. An element
whose gradients are as small as their rounding still moves by a whole step, to where that rounding points.

Measured in a perceptron with batch normalization in bfloat16: in a bias of 32 elements that began at zero,
one element went the other way in Adam's first step, which is 2 / sqrt(32) = 0.35 of the bias.

The divisor of each element is kept, as a fraction of the root mean square of its parameter's gradients. The
smallest of all steps counts: an element that went astray once stays where it is. The movement of the
gradients by rounding is known once the original has run twice: for that some elements are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from migrate.prove.recording.shards import local

# Number of elements of a parameter's gradient to keep, evenly spread.
_MOST_KEPT = 65_536


class Elements:
    """Divisors of the elements of all parameters of a process."""

    def __init__(self) -> None:
        self._least: Any = WeakTensorKeyDictionary()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Inspect an optimizer right after its step; optimizers without divisors are skipped."""
        with torch.no_grad():
            for parameter, scale in _divisors(optimizer):
                gradient = local(parameter.grad)
                if gradient is None or gradient.is_sparse or gradient.is_complex():
                    continue
                share = scale / gradient.float().square().mean().sqrt()
                # Zero gradients have no rounding: the unused rows of an embedding.
                share = torch.where((scale == 0) | share.isnan(), torch.inf, share)
                known = self._least.get(parameter)
                self._least[parameter] = share if known is None else torch.minimum(known, share)

    def least(self, held: Sequence[torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the smallest fraction so far of each element of these parameters, by name."""
        return {
            name: self._least[parameter].to(torch.bfloat16)
            for parameter, name in zip(held, names, strict=True)
            if parameter in self._least
        }


def gradients(held: Sequence[torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return some elements of the gradient of each of these parameters, by name."""
    elements = {}
    for parameter, name in zip(held, names, strict=True):
        gradient = local(parameter.grad)
        if gradient is not None and not gradient.is_sparse and not gradient.is_complex():
            flat = gradient.detach().float().flatten()
            elements[name] = flat[:: max(1, -(-flat.numel() // _MOST_KEPT))].clone()
    return elements


def divides(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer that has stepped divides each element's gradient by its own size."""
    return next(_divisors(optimizer), None) is not None


def _divisors(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the parameters with the divisors of their elements in the last step."""
    for group in optimizer.param_groups:
        eps = group.get("eps", 0.0)
        for parameter in group["params"]:
            state: dict[str, Any] = optimizer.state.get(parameter, {})
            if "exp_avg_sq" in state and "step" in state and "betas" in group:
                seen = 1 - group["betas"][1] ** float(state["step"])
                squares = state["exp_avg_sq"] / seen
            elif "square_avg" in state:
                squares = state["square_avg"]
            elif "sum" in state:
                squares = state["sum"]
            else:
                continue
            squares = local(squares)
            if isinstance(squares, torch.Tensor) and squares.shape == local(parameter).shape:
                root = squares.float().sqrt()
                yield parameter, torch.where(root == 0, 0.0, root + eps)
