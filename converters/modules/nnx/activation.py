"""`torch.nn.PReLU` with a slope for each channel, as an nnx module."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array


class PReLU(nnx.Module):
    """`torch.nn.PReLU(num_parameters)`; channels last. For one slope there is `nnx.PReLU`.

    Args:
        num_parameters: channels.
        init_slope: the first slope, torch's 0.25.
        rngs: unused; for compatibility with nnx's layers.
    """

    def __init__(
        self, num_parameters: int, *, init_slope: float = 0.25, rngs: nnx.Rngs | None = None
    ) -> None:
        self.negative_slope = nnx.Param(jnp.full((num_parameters,), init_slope))

    def __call__(self, x: Array) -> Array:
        """Return x, or slope * x where x is negative."""
        return jnp.where(x >= 0, x, self.negative_slope[...] * x)
