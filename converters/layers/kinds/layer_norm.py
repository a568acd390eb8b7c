"""LayerNorm: `scale = weight`, `bias = bias`, unchanged.

Three defaults of Flax differ. Its epsilon is 1e-6 (torch: 1e-5). `use_fast_variance=True` loses all
digits if the mean is large compared to the deviation (error 564 at x ≈ 1e4), so pass False. A
`normalized_shape` of several axes needs `reduction_axes` and `feature_axes` in linen. nnx's layer
(flax 0.12.8) has a flat scale only; `converters.modules.nnx` has a layer of several axes.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.flax_call import (
    Api,
    FlaxCall,
    Value,
    changed,
    has,
    num_features,
    ours,
    own,
    use_bias,
    use_scale,
)
from converters.layers.layout import UNCHANGED


def flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    """Return Flax's own layer; for several axes in nnx, the layer of `converters.modules`."""
    shape, weight, bias = tuple(layer.normalized_shape), has(layer, "weight"), has(layer, "bias")
    if api == "nnx" and len(shape) > 1:
        sizes = {
            "normalized_shape": shape,
            **changed(elementwise_affine=(weight, True), bias=(bias or not weight, True)),
        }
        return (ours(api, "LayerNorm", sizes, settings={"eps": layer.eps}),)
    sizes = {**num_features(api, shape[0]), **use_scale(layer), **use_bias(layer)}
    settings = {"epsilon": layer.eps, "use_fast_variance": False, **several_axes(shape)}
    return (own(api, "LayerNorm", sizes, settings=settings),)


def several_axes(shape: tuple[int, ...]) -> dict[str, Value]:
    """Return the arguments with which linen's norms use more than the last axis."""
    axes = tuple(range(-len(shape), 0))
    return {"reduction_axes": axes, "feature_axes": axes} if len(axes) > 1 else {}


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
                input_shape=(2, 7, 5),
            ),
            ForwardCase(
                "without bias, a large epsilon",
                torch=lambda nn: nn.LayerNorm(5, eps=0.1, bias=False),
                input_shape=(7, 5),
            ),
            ForwardCase(
                "normalized_shape of two axes",
                torch=lambda nn: nn.LayerNorm((3, 5)),
                input_shape=(7, 3, 5),
            ),
            ForwardCase(
                "normalized_shape of two axes, not affine",
                torch=lambda nn: nn.LayerNorm((3, 5), eps=0.1, elementwise_affine=False),
                input_shape=(7, 3, 5),
            ),
        ),
        flax=flax,
    ),
)
