"""The factor by which a script multiplies all gradients between its last backward and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping

import torch

# Relative difference of an element from its product: the rounding of the factor, and of the product.
_ROUNDING = 3e-7
_LEAST = 1e-37  # products below it have fewer digits


def common_factor(
    before: Mapping[str, torch.Tensor | None], after: Mapping[str, torch.Tensor | None]
) -> float | None:
    """Return the number by which all gradients were multiplied; None if there is no such number.

    Args:
        before: gradients by names of parameters; None: there is none.
        after: gradients after the change.
    """
    pairs = [
        (gradient.detach().double(), changed.detach().double())
        for name, gradient in before.items()
        if gradient is not None and (changed := after.get(name)) is not None
    ]
    lost = [n for n, x in before.items() if x is not None and after.get(n) is None and x.any()]
    gained = [n for n, x in after.items() if x is not None and before.get(n) is None and x.any()]
    squares = sum(float((x * x).sum()) for x, _ in pairs)
    if lost or gained or not 0 < squares < float("inf"):
        return None
    factor = sum(float((x * y).sum()) for x, y in pairs) / squares
    for x, y in pairs:
        product = factor * x
        if not bool(((y - product).abs() <= _ROUNDING * product.abs() + _LEAST).all()):  # NaN too
            return None
    return factor
