"""GroupNorm: `scale = weight`, `bias = bias`, unchanged.

Flax groups the last axis (channels last). Its epsilon is 1e-6 (torch: 1e-5), and its default is 32
groups for any number of channels. Pass `use_fast_variance=False`, as for LayerNorm.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.flax_call import Api, FlaxCall, num_features, own, use_bias, use_scale
from converters.layers.layout import UNCHANGED


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    sizes = {**num_features(api, layer.num_channels), **use_scale(layer), **use_bias(layer)}
    settings = {
        "num_groups": layer.num_groups,
        "epsilon": layer.eps,
        "use_fast_variance": False,
    }
    return (own(api, "GroupNorm", sizes, settings=settings, channels_last=True),)


ENTRIES = (
    LayerEntry(
        kind="GroupNorm",
        doc=__doc__,
        weights=(
            Weight("weight", "scale", "scale", UNCHANGED),
            Weight("bias", "bias", "bias", UNCHANGED),
        ),
        cases=(
            ForwardCase(
                "three groups of two channels",
                torch=lambda nn: nn.GroupNorm(3, 6),
                input_shape=(2, 6, 7, 5),
            ),
            ForwardCase(
                "not affine, a large epsilon",
                torch=lambda nn: nn.GroupNorm(2, 6, eps=0.1, affine=False),
                input_shape=(2, 6, 7, 5),
            ),
        ),
        flax=_flax,
    ),
)
