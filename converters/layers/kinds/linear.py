"""Linear: `kernel = weight.T`.

torch stores (out, in) and multiplies by the transpose. Flax's `Dense` (linen) and `Linear` (nnx)
store (in, out).
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.flax_call import Api, FlaxCall, features, own, use_bias
from converters.layers.layout import UNCHANGED, Permute


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    sizes = {**features(api, layer.in_features, layer.out_features), **use_bias(layer)}
    return (own(api, "Dense" if api == "linen" else "Linear", sizes),)


ENTRIES = (
    LayerEntry(
        kind="Linear",
        doc=__doc__,
        weights=(
            Weight("weight", "kernel", "kernel", Permute((1, 0))),
            Weight("bias", "bias", "bias", UNCHANGED),
        ),
        cases=(
            ForwardCase(
                "with bias",
                torch=lambda nn: nn.Linear(5, 3),
                input_shape=(7, 5),
            ),
            ForwardCase(
                "without bias, three axes",
                torch=lambda nn: nn.Linear(5, 3, bias=False),
                input_shape=(2, 7, 5),
            ),
        ),
        flax=_flax,
    ),
)
