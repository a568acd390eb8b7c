"""`torch.nn.Bilinear` as a linen module."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike


class Bilinear(nn.Module):
    """`torch.nn.Bilinear`: y = x1 A x2 + b, one matrix A for each output.

    Attributes:
        features: of the output. The kernel is (in1, in2, features).
        use_bias: whether there is a bias.
    """

    features: int
    use_bias: bool = True
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None
    kernel_init: nn.initializers.Initializer | None = None
    bias_init: nn.initializers.Initializer | None = None

    @nn.compact
    def __call__(self, input1: Array, input2: Array) -> Array:
        """Map (…, in1) and (…, in2) to (…, features)."""
        shape = (input1.shape[-1], input2.shape[-1], self.features)
        bound = input1.shape[-1] ** -0.5  # torch's default for kernel and bias

        def uniform(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
            return jax.random.uniform(key, shape, dtype, minval=-bound, maxval=bound)

        kernel = self.param("kernel", self.kernel_init or uniform, shape, self.param_dtype)
        bias = None
        if self.use_bias:
            start = self.bias_init or uniform
            bias = self.param("bias", start, (self.features,), self.param_dtype)
        input1, kernel, input2, bias = nn.dtypes.promote_dtype(
            input1, kernel, input2, bias, dtype=self.dtype
        )
        y = jnp.einsum("...i,ijo,...j->...o", input1, kernel, input2, precision=self.precision)
        return y if bias is None else y + bias
