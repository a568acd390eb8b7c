"""`torch.nn.PReLU` with a slope for each channel, as an nnx module."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import DTypeLike


class PReLU(nnx.Module):
    """`torch.nn.PReLU(num_parameters)`; channels last. For one slope there is `nnx.PReLU`.

    Args:
        num_parameters: channels.
        negative_slope_init: the first slope, torch's 0.25.
        dtype: of the computation.
        param_dtype: of the slopes.
        rngs: unused; for compatibility with nnx's layers.
    """

    def __init__(
        self,
        num_parameters: int,
        *,
        negative_slope_init: float = 0.25,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.dtype = dtype
        self.negative_slope = nnx.Param(
            jnp.full((num_parameters,), negative_slope_init, param_dtype)
        )

    def __call__(self, x: Array) -> Array:
        """Return x, or slope * x where x is negative."""
        x, slope = dtypes.promote_dtype((x, self.negative_slope[...]), dtype=self.dtype)
        return jnp.where(x >= 0, x, slope * x)
