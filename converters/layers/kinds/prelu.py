"""PReLU: `negative_slope = weight`; one slope for all channels has no axis in Flax.

torch's slope begins at 0.25, Flax's at 0.01. A slope for each channel: `converters.modules`' PReLU (Flax's
fails to take one in linen).
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight, Weights, ours
from converters.layers.layout import UNCHANGED, Split


def _weights(layer: Any) -> Weights:
    layout = Split(0, ()) if layer.num_parameters == 1 else UNCHANGED
    return (Weight("weight", "negative_slope", "negative_slope", layout),)


def _note(layer: Any) -> str:
    return "" if layer.num_parameters == 1 else "converters.modules: PReLU"


ENTRIES = (
    LayerEntry(
        kind="PReLU",
        doc=__doc__,
        weights=_weights,
        cases=(
            ForwardCase(
                "one slope",
                torch=lambda nn: nn.PReLU(),
                linen=lambda nn: nn.PReLU(),
                nnx=lambda nnx, rngs: nnx.PReLU(),
                input_shape=(7, 4, 5),
                channels_last=True,
            ),
            ForwardCase(
                "a slope for each channel",
                torch=lambda nn: nn.PReLU(4),
                linen=lambda nn: ours("linen").PReLU(4),
                nnx=lambda nnx, rngs: ours("nnx").PReLU(4),
                input_shape=(7, 4, 5),
                channels_last=True,
            ),
        ),
        note=_note,
    ),
)
