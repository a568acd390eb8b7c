"""`torch.nn.Bilinear` as a linen module."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array


class Bilinear(nn.Module):
    """`torch.nn.Bilinear`: y = x1 A x2 + b, one matrix A for each output.

    Attributes:
        features: of the output. The kernel is (in1, in2, features).
        use_bias: whether there is a bias.
    """

    features: int
    use_bias: bool = True
    kernel_init: nn.initializers.Initializer | None = None
    bias_init: nn.initializers.Initializer | None = None

    @nn.compact
    def __call__(self, input1: Array, input2: Array) -> Array:
        """(…, in1) and (…, in2) → (…, features)."""
        shape = (input1.shape[-1], input2.shape[-1], self.features)
        bound = input1.shape[-1] ** -0.5  # torch's default, of both

        def uniform(key: Array, shape: tuple[int, ...]) -> Array:
            return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

        kernel = self.param("kernel", self.kernel_init or uniform, shape)
        y = jnp.einsum("...i,ijo,...j->...o", input1, kernel, input2)
        if self.use_bias:
            y = y + self.param("bias", self.bias_init or uniform, (self.features,))
        return y
