"""torch's transposed convolution, with groups and output_padding, as a linen module."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from converters.modules.functional.convolution import conv_transpose


class ConvTranspose(nn.Module):
    """`torch.nn.ConvTranspose1d`, 2d, 3d; channels last, all sides as tuples.

    With one group the weights are those of `flax.linen.ConvTranspose`.

    Attributes:
        features: output channels.
        kernel_size: one side for each axis of space.
        strides: as many; the defaults of all are torch's.
        padding: as many, torch's: cut off the full output on both sides.
        output_padding: as many: added at the end.
        kernel_dilation: as many.
        groups: into which the channels are parted.
        use_bias: whether there is a bias.
    """

    features: int
    kernel_size: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    padding: tuple[int, ...] | None = None
    output_padding: tuple[int, ...] | None = None
    kernel_dilation: tuple[int, ...] | None = None
    groups: int = 1
    use_bias: bool = True
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    kernel_init: nn.initializers.Initializer | None = None
    bias_init: nn.initializers.Initializer | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Map (batch, *space, in) to (batch, *larger space, features)."""
        rank = len(self.kernel_size)
        shape = (*self.kernel_size, x.shape[-1] // self.groups, self.features)
        # torch's default for kernel and bias: it counts the outputs of a group.
        bound = (self.features // self.groups * math.prod(self.kernel_size)) ** -0.5

        def uniform(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
            return jax.random.uniform(key, shape, dtype, minval=-bound, maxval=bound)

        kernel = self.param("kernel", self.kernel_init or uniform, shape, self.param_dtype)
        bias = None
        if self.use_bias:
            start = self.bias_init or uniform
            bias = self.param("bias", start, (self.features,), self.param_dtype)
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        y = conv_transpose(
            x,
            kernel,
            strides=self.strides or (1,) * rank,
            padding=self.padding or (0,) * rank,
            output_padding=self.output_padding or (0,) * rank,
            dilation=self.kernel_dilation or (1,) * rank,
            groups=self.groups,
        )
        return y if bias is None else y + bias
