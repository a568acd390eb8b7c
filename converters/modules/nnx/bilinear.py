"""`torch.nn.Bilinear` as an nnx module."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array


class Bilinear(nnx.Module):
    """`torch.nn.Bilinear`: y = x1 A x2 + b, one matrix A for each output.

    Args:
        in1_features: of the first input.
        in2_features: of the second.
        out_features: of the output. The kernel is (in1, in2, out).
        use_bias: whether there is a bias.
        rngs: for the kernel.
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        shape = (in1_features, in2_features, out_features)
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape))
        self.bias = nnx.Param(jnp.zeros((out_features,))) if use_bias else None

    def __call__(self, input1: Array, input2: Array) -> Array:
        """Map (…, in1) and (…, in2) to (…, out)."""
        y = jnp.einsum("...i,ijo,...j->...o", input1, self.kernel[...], input2)
        return y if self.bias is None else y + self.bias[...]
