"""RMSNorm: `scale = weight`, unchanged.

torch's epsilon is by default None, which means the smallest step of the input's dtype (1.19e-7 in float32,
7.8e-3 in bfloat16); Flax's is 1e-6. A `normalized_shape` of several axes needs `reduction_axes` and
`feature_axes` in linen; nnx's layer has a flat scale only, `converters.modules.nnx` has one of several axes.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight, ours

_EPSILON = 1.1920928955078125e-07  # float32's


def _note(layer: Any) -> str:
    axes = tuple(range(-len(layer.normalized_shape), 0))
    several = f", reduction_axes={axes}, feature_axes={axes}" if len(axes) > 1 else ""
    if layer.eps is None:
        return f"epsilon={_EPSILON:g} for float32 inputs (torch: the dtype's eps){several}"
    return f"epsilon={layer.eps:g}{several}"


ENTRIES = (
    LayerEntry(
        kind="RMSNorm",
        doc=__doc__,
        weights=(Weight("weight", "scale", "scale"),),
        cases=(
            ForwardCase(
                "torch's default epsilon",
                torch=lambda nn: nn.RMSNorm(5),
                linen=lambda nn: nn.RMSNorm(epsilon=_EPSILON),
                nnx=lambda nnx, rngs: nnx.RMSNorm(5, epsilon=_EPSILON, rngs=rngs),
                input_shape=(2, 7, 5),
            ),
            ForwardCase(
                "a large epsilon, without weight",
                torch=lambda nn: nn.RMSNorm(5, eps=0.1, elementwise_affine=False),
                linen=lambda nn: nn.RMSNorm(epsilon=0.1, use_scale=False),
                nnx=lambda nnx, rngs: nnx.RMSNorm(5, epsilon=0.1, use_scale=False, rngs=rngs),
                input_shape=(7, 5),
            ),
            ForwardCase(
                "normalized_shape of two axes",
                torch=lambda nn: nn.RMSNorm((3, 5)),
                linen=lambda nn: nn.RMSNorm(
                    epsilon=_EPSILON, reduction_axes=(-2, -1), feature_axes=(-2, -1)
                ),
                nnx=lambda nnx, rngs: ours("nnx").RMSNorm((3, 5)),
                input_shape=(7, 3, 5),
            ),
        ),
        note=_note,
    ),
)
