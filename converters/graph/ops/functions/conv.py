"""Convolutions and patches that jax.lax says at length."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def conv_transpose(
    x: jax.Array,
    weight: jax.Array,
    stride: tuple[int, ...],
    padding: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
) -> jax.Array:
    """The transposed convolution of (N, C, …) by a kernel (C, O / groups, …)."""
    rank = weight.ndim - 2
    zeros, ones = (0,) * rank, (1,) * rank
    padding, output_padding = padding or zeros, output_padding or zeros
    dilation = dilation or ones
    channels, outputs, *kernel = weight.shape
    weight = jnp.flip(weight, axis=tuple(range(2, rank + 2)))
    weight = weight.reshape(groups, channels // groups, outputs, *kernel).swapaxes(1, 2)
    edges = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    axes = "DHW"[-rank:]
    return jax.lax.conv_general_dilated(
        x,
        weight.reshape(groups * outputs, channels // groups, *kernel),
        window_strides=ones,
        padding=[(edge, edge + more) for edge, more in zip(edges, output_padding, strict=True)],
        lhs_dilation=stride,
        rhs_dilation=dilation,
        dimension_numbers=(f"NC{axes}", f"OI{axes}", f"NC{axes}"),
        feature_group_count=groups,
    )


def patches(
    x: jax.Array,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> jax.Array:
    """The patches under a kernel of images (N, C, H, W): (N, C * kernel, places)."""
    patches = jax.lax.conv_general_dilated_patches(
        x,
        kernel,
        stride,
        [(side, side) for side in padding],
        rhs_dilation=dilation,
        precision=jax.lax.Precision.HIGHEST,
    )
    return patches.reshape(*patches.shape[:2], patches.shape[2] * patches.shape[3])


def from_patches(
    x: jax.Array,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> jax.Array:
    """Images of `size` that patches (N, C * kernel, places) add up to."""
    shape = (x.shape[0], x.shape[1] // (kernel[0] * kernel[1]), *size)
    back = jax.linear_transpose(
        lambda image: patches(image, kernel, stride, padding, dilation),
        jax.ShapeDtypeStruct(shape, x.dtype),
    )
    return back(x)[0]
