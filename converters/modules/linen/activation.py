"""`torch.nn.PReLU` with a slope for each channel, as a linen module."""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike


class PReLU(nn.Module):
    """`torch.nn.PReLU(num_parameters)`; channels last. For one slope there is `flax.linen.PReLU`.

    Attributes:
        num_parameters: channels.
        negative_slope_init: the first slope, torch's 0.25.
    """

    num_parameters: int
    negative_slope_init: float = 0.25
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return x, or slope * x where x is negative."""
        start = nn.initializers.constant(self.negative_slope_init)
        slope = self.param("negative_slope", start, (self.num_parameters,), self.param_dtype)
        x, slope = nn.dtypes.promote_dtype(x, slope, dtype=self.dtype)
        return jnp.where(x >= 0, x, slope * x)
