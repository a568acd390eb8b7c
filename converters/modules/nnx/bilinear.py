"""`torch.nn.Bilinear` as an nnx module."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import DTypeLike


class Bilinear(nnx.Module):
    """`torch.nn.Bilinear`: y = x1 A x2 + b, one matrix A for each output.

    Args:
        in1_features: of the first input.
        in2_features: of the second.
        out_features: of the output. The kernel is (in1, in2, out).
        use_bias: whether there is a bias.
        dtype: of the computation.
        param_dtype: of the weights.
        precision: of the product.
        kernel_init: None: torch's.
        bias_init: None: torch's.
        rngs: for the weights.
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: nnx.initializers.Initializer | None = None,
        bias_init: nnx.initializers.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.dtype, self.precision = dtype, precision
        bound = in1_features**-0.5  # torch's default for kernel and bias

        def weight(init: nnx.initializers.Initializer | None, *shape: int) -> nnx.Param[Array]:
            def uniform(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
                return jax.random.uniform(key, shape, dtype, minval=-bound, maxval=bound)

            return nnx.Param((init or uniform)(rngs.params(), shape, param_dtype))

        self.kernel = weight(kernel_init, in1_features, in2_features, out_features)
        self.bias = weight(bias_init, out_features) if use_bias else None

    def __call__(self, input1: Array, input2: Array) -> Array:
        """Map (…, in1) and (…, in2) to (…, out)."""
        bias = None if self.bias is None else self.bias[...]
        input1, kernel, input2, bias = dtypes.promote_dtype(
            (input1, self.kernel[...], input2, bias), dtype=self.dtype
        )
        y = jnp.einsum("...i,ijo,...j->...o", input1, kernel, input2, precision=self.precision)
        return y if bias is None else y + bias
