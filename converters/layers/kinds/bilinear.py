"""Bilinear: (out, in1, in2) → (in1, in2, out).

Flax has no such layer; `converters.modules` has.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight, ours
from converters.layers.layout import UNCHANGED, Permute


def _case(name: str, bias: bool) -> ForwardCase:
    return ForwardCase(
        name,
        torch=lambda nn: nn.Bilinear(5, 4, 3, bias=bias),
        linen=lambda nn: ours("linen").Bilinear(3, use_bias=bias),
        nnx=lambda nnx, rngs: ours("nnx").Bilinear(5, 4, 3, use_bias=bias, rngs=rngs),
        input_shape=(7, 5),
        arguments=lambda rng: {"input2": rng.standard_normal((7, 4)).astype("float32")},
    )


def _note(layer: Any) -> str:
    return "converters.modules: Bilinear"


ENTRIES = (
    LayerEntry(
        kind="Bilinear",
        doc=__doc__,
        weights=(
            Weight("weight", "kernel", "kernel", Permute((1, 2, 0))),
            Weight("bias", "bias", "bias", UNCHANGED),
        ),
        cases=(_case("with bias", True), _case("without bias", False)),
        note=_note,
    ),
)
