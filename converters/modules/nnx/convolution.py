"""torch's transposed convolution, with groups and output_padding, as an nnx module."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array

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
        rngs: for the kernel.
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
        rngs: nnx.Rngs,
    ) -> None:
        rank = len(kernel_size)
        self.strides, self.padding = strides or (1,) * rank, padding or (0,) * rank
        self.output_padding = output_padding or (0,) * rank
        self.dilation, self.groups = kernel_dilation or (1,) * rank, groups
        shape = (*kernel_size, in_features // groups, out_features)
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape))
        self.bias = nnx.Param(jnp.zeros((out_features,))) if use_bias else None

    def __call__(self, x: Array) -> Array:
        """Map (batch, *space, in) to (batch, *larger space, out)."""
        y = conv_transpose(
            x,
            self.kernel[...],
            strides=self.strides,
            padding=self.padding,
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        return y if self.bias is None else y + self.bias[...]
