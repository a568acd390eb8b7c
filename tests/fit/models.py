"""Models that the tests of `migrate fit` name."""

from __future__ import annotations

from typing import Any

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
