"""Models that the tests of `migrate fit` name."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen


class Tower(linen.Module):
    """Two wide layers."""

    width: int = 1024

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, features)."""
        x = linen.relu(linen.Dense(self.width)(x))
        return linen.Dense(16)(x)


class Narrow(linen.Module):
    """Heads of 48."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, heads, tokens, 48)."""
        scores = jnp.einsum("bhqd,bhkd->bhqk", x, x)
        return jnp.einsum("bhqk,bhkd->bhqd", scores, x)


class Exact(linen.Module):
    """A product with all digits."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, features)."""
        return linen.Dense(1024, precision="highest")(x)


def huge() -> linen.Module:
    """More than a chip holds."""
    return Tower(1 << 17)
