"""Models that the tests of `migrate fit` name."""

from __future__ import annotations

from typing import Any

import optax
from flax import linen


class Tower(linen.Module):
    """Two wide layers."""

    width: int = 1024

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, features)."""
        x = linen.relu(linen.Dense(self.width)(x))
        return linen.Dense(16)(x)


def huge() -> linen.Module:
    """More than a chip holds."""
    return Tower(1 << 17)


class Deep(linen.Module):
    """Layers whose values, kept for the gradients, are most of what a step holds."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, 1024)."""
        for _ in range(8):
            x = linen.gelu(linen.Dense(1024)(x))
        return linen.Dense(16)(x)


def clipped() -> optax.GradientTransformation:
    """An optimizer of one's own."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
