"""Bilinear: (out, in1, in2) → (in1, in2, out).

Flax has no such layer; `converters.modules` has.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.flax_call import Api, FlaxCall, ours, use_bias
from converters.layers.layout import UNCHANGED, Permute


def _case(name: str, bias: bool) -> ForwardCase:
    return ForwardCase(
        name,
        torch=lambda nn: nn.Bilinear(5, 4, 3, bias=bias),
        input_shape=(7, 5),
        arguments=lambda rng: {"input2": rng.standard_normal((7, 4)).astype("float32")},
    )


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    inputs = {"in1_features": layer.in1_features, "in2_features": layer.in2_features}
    outputs = {"out_features" if api == "nnx" else "features": layer.out_features}
    sizes = inputs if api == "nnx" else {}
    return (ours(api, "Bilinear", {**sizes, **outputs, **use_bias(layer)}),)


ENTRIES = (
    LayerEntry(
        kind="Bilinear",
        doc=__doc__,
        weights=(
            Weight("weight", "kernel", "kernel", Permute((1, 2, 0))),
            Weight("bias", "bias", "bias", UNCHANGED),
        ),
        cases=(_case("with bias", True), _case("without bias", False)),
        flax=_flax,
    ),
)
