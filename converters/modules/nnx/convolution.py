"""torch's transposed convolution, with groups and output_padding, as an nnx module."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import DTypeLike

from converters.modules.functional.convolution import conv_transpose


class ConvTranspose(nnx.Module):
    """`torch.nn.ConvTranspose1d`, 2d, 3d; channels last, all sides as tuples.

    With one group the weights are those of `nnx.ConvTranspose`.

    Args:
        in_features: input channels.
        out_features: output channels.
        kernel_size: one side for each axis of space.
        strides: as many; the defaults of all are torch's.
        padding: as many, torch's: cut off the full output on both sides.
        output_padding: as many: added at the end.
        kernel_dilation: as many.
        groups: into which the channels are parted.
        use_bias: whether there is a bias.
        dtype: of the computation.
        param_dtype: of the weights.
        kernel_init: None: torch's.
        bias_init: None: torch's.
        rngs: for the weights.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: tuple[int, ...],
        *,
        strides: tuple[int, ...] | None = None,
        padding: tuple[int, ...] | None = None,
        output_padding: tuple[int, ...] | None = None,
        kernel_dilation: tuple[int, ...] | None = None,
        groups: int = 1,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: nnx.initializers.Initializer | None = None,
        bias_init: nnx.initializers.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        rank = len(kernel_size)
        self.strides, self.padding = strides or (1,) * rank, padding or (0,) * rank
        self.output_padding = output_padding or (0,) * rank
        self.dilation, self.groups = kernel_dilation or (1,) * rank, groups
        self.dtype = dtype
        # torch's default for kernel and bias: it counts the outputs of a group.
        bound = (out_features // groups * math.prod(kernel_size)) ** -0.5

        def weight(init: nnx.initializers.Initializer | None, *shape: int) -> nnx.Param[Array]:
            def uniform(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
                return jax.random.uniform(key, shape, dtype, minval=-bound, maxval=bound)

            return nnx.Param((init or uniform)(rngs.params(), shape, param_dtype))

        self.kernel = weight(kernel_init, *kernel_size, in_features // groups, out_features)
        self.bias = weight(bias_init, out_features) if use_bias else None

    def __call__(self, x: Array) -> Array:
        """Map (batch, *space, in) to (batch, *larger space, out)."""
        bias = None if self.bias is None else self.bias[...]
        x, kernel, bias = dtypes.promote_dtype((x, self.kernel[...], bias), dtype=self.dtype)
        y = conv_transpose(
            x,
            kernel,
            strides=self.strides,
            padding=self.padding,
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        return y if bias is None else y + bias
