"""RMSNorm: `scale = weight`, unchanged.

torch's default epsilon is None, which means the smallest step of the input's dtype (1.19e-7 in
float32, 7.8e-3 in bfloat16); Flax's is 1e-6. A `normalized_shape` of several axes needs
`reduction_axes` and `feature_axes` in linen. nnx's layer has a flat scale only;
`converters.modules.nnx` has a layer of several axes.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.flax_call import (
    Api,
    FlaxCall,
    changed,
    has,
    num_features,
    ours,
    own,
    use_scale,
)
from converters.layers.kinds.layer_norm import several_axes

_EPSILON = 1.1920928955078125e-07  # of float32


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    shape = tuple(layer.normalized_shape)
    if api == "nnx" and len(shape) > 1:
        affine = changed(elementwise_affine=(has(layer, "weight"), True))
        sizes = {"normalized_shape": shape, **affine}
        return (ours(api, "RMSNorm", sizes, settings=changed(eps=(layer.eps, None))),)
    epsilon, note = layer.eps, "torch's epsilon is that of the input's dtype, this one float32's"
    return (
        own(
            api,
            "RMSNorm",
            {**num_features(api, shape[0]), **use_scale(layer)},
            settings={
                "epsilon": _EPSILON if epsilon is None else epsilon,
                **several_axes(shape),
            },
            remarks=(note,) if epsilon is None else (),
        ),
    )


ENTRIES = (
    LayerEntry(
        kind="RMSNorm",
        doc=__doc__,
        weights=(Weight("weight", "scale", "scale"),),
        cases=(
            ForwardCase(
                "torch's default epsilon",
                torch=lambda nn: nn.RMSNorm(5),
                input_shape=(2, 7, 5),
            ),
            ForwardCase(
                "a large epsilon, without weight",
                torch=lambda nn: nn.RMSNorm(5, eps=0.1, elementwise_affine=False),
                input_shape=(7, 5),
            ),
            ForwardCase(
                "normalized_shape of two axes",
                torch=lambda nn: nn.RMSNorm((3, 5)),
                input_shape=(7, 3, 5),
            ),
        ),
        flax=_flax,
    ),
)
