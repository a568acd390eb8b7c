"""LayerNorm: `scale = weight`, `bias = bias`, unchanged.

Three defaults of Flax differ: epsilon is 1e-6 (torch: 1e-5); `use_fast_variance=True` loses all
digits where the mean is large against the deviation (error 564 at x ≈ 1e4), so pass False; and a
`normalized_shape` of several axes needs `reduction_axes` and `feature_axes` in linen. nnx's layer
(flax 0.12.8) has a flat scale only; `converters.modules.nnx` has one of several axes.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight, ours
from converters.layers.layout import UNCHANGED


def _note(layer: Any) -> str:
    axes = tuple(range(-len(layer.normalized_shape), 0))
    several = f", reduction_axes={axes}, feature_axes={axes}" if len(axes) > 1 else ""
    return f"epsilon={layer.eps:g}, use_fast_variance=False{several}"


ENTRIES = (
    LayerEntry(
        kind="LayerNorm",
        doc=__doc__,
        weights=(
            Weight("weight", "scale", "scale", UNCHANGED),
            Weight("bias", "bias", "bias", UNCHANGED),
        ),
        cases=(
            ForwardCase(
                "torch's default epsilon",
                torch=lambda nn: nn.LayerNorm(5),
                linen=lambda nn: nn.LayerNorm(epsilon=1e-5, use_fast_variance=False),
                nnx=lambda nnx, rngs: nnx.LayerNorm(
                    5, epsilon=1e-5, use_fast_variance=False, rngs=rngs
                ),
                input_shape=(2, 7, 5),
            ),
            ForwardCase(
                "without bias, a large epsilon",
                torch=lambda nn: nn.LayerNorm(5, eps=0.1, bias=False),
                linen=lambda nn: nn.LayerNorm(epsilon=0.1, use_fast_variance=False, use_bias=False),
                nnx=lambda nnx, rngs: nnx.LayerNorm(
                    5, epsilon=0.1, use_fast_variance=False, use_bias=False, rngs=rngs
                ),
                input_shape=(7, 5),
            ),
            ForwardCase(
                "normalized_shape of two axes",
                torch=lambda nn: nn.LayerNorm((3, 5)),
                linen=lambda nn: nn.LayerNorm(
                    epsilon=1e-5,
                    use_fast_variance=False,
                    reduction_axes=(-2, -1),
                    feature_axes=(-2, -1),
                ),
                nnx=lambda nnx, rngs: ours("nnx").LayerNorm((3, 5)),
                input_shape=(7, 3, 5),
            ),
        ),
        note=_note,
    ),
)
