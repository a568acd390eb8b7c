"""nnx layers that round once in 16 bits, as torch's kernels do, for `migrate port`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


class LinearRoundedOnce(nnx.Linear):
    """A dense layer that adds its bias before it rounds the product."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, preferred_element_type=jnp.float32, **options)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Apply the layer; the result has the dtype of the computation."""
        return (
            super().__call__(inputs).astype(self.dtype or jnp.result_type(inputs, self.kernel[...]))
        )


class ConvolutionRoundedOnce(nnx.Conv):
    """A convolution that adds its bias before it rounds the product."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, preferred_element_type=jnp.float32, **options)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Apply the layer; the result has the dtype of the computation."""
        return (
            super().__call__(inputs).astype(self.dtype or jnp.result_type(inputs, self.kernel[...]))
        )
