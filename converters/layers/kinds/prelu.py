"""PReLU: `negative_slope = weight`; one slope for all channels has no axis in Flax.

torch's initial slope is 0.25, Flax's is 0.01. For one slope per channel use `converters.modules`'
PReLU; Flax's does not support it in linen.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight, Weights
from converters.layers.flax_call import Api, FlaxCall, ours, own
from converters.layers.layout import UNCHANGED, Split


def _weights(layer: Any) -> Weights:
    layout = Split(0, ()) if layer.num_parameters == 1 else UNCHANGED
    return (Weight("weight", "negative_slope", "negative_slope", layout),)


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    if layer.num_parameters == 1:
        return (own(api, "PReLU", {}, takes_rngs=False),)
    sizes = {"num_parameters": layer.num_parameters}
    return (ours(api, "PReLU", sizes, channels_last=True),)


ENTRIES = (
    LayerEntry(
        kind="PReLU",
        doc=__doc__,
        weights=_weights,
        cases=(
            ForwardCase(
                "one slope",
                torch=lambda nn: nn.PReLU(),
                input_shape=(7, 4, 5),
            ),
            ForwardCase(
                "a slope for each channel",
                torch=lambda nn: nn.PReLU(4),
                input_shape=(7, 4, 5),
            ),
        ),
        flax=_flax,
    ),
)
