"""GroupNorm: `scale = weight`, `bias = bias`, unchanged.

Flax groups the last axis (channels last), its epsilon is 1e-6 (torch: 1e-5), its default is 32
groups whatever the channels, and `use_fast_variance=False` has to be passed, as for LayerNorm.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.layout import UNCHANGED


def _note(layer: Any) -> str:
    return f"num_groups={layer.num_groups}, epsilon={layer.eps:g}, use_fast_variance=False"


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
                linen=lambda nn: nn.GroupNorm(num_groups=3, epsilon=1e-5, use_fast_variance=False),
                nnx=lambda nnx, rngs: nnx.GroupNorm(
                    6, num_groups=3, epsilon=1e-5, use_fast_variance=False, rngs=rngs
                ),
                input_shape=(2, 6, 7, 5),
                channels_last=True,
            ),
        ),
        note=_note,
    ),
)
