"""torch's transposed convolution, with groups and output_padding, channels last."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import Array


def conv_transpose(
    x: Array,
    kernel: Array,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Compute a transposed convolution as a convolution of the dilated input.

    Args:
        x: (batch, *space, in).
        kernel: (*k, in / groups, out), flipped along space: Flax's form.
        strides: one value per spatial axis, like all following arguments.
        padding: torch's padding: the number of elements cut off the full output on both sides.
        output_padding: torch's output padding: the number of elements added at the end.
        dilation: the dilation of the kernel.
        groups: the number of groups of channels.
    """
    rank = len(strides)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel.shape[:rank], strict=True)]
    pads = [
        (r - p, r - p + more) for r, p, more in zip(reach, padding, output_padding, strict=True)
    ]
    space = "HWD"[:rank]
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(1,) * rank,
        padding=pads,
        lhs_dilation=strides,
        rhs_dilation=dilation,
        dimension_numbers=(f"N{space}C", f"{space}IO", f"N{space}C"),
        feature_group_count=groups,
    )
