"""Linear: `kernel = weight.T`.

torch keeps (out, in) and multiplies by the transpose; Flax's `Dense` (linen) and `Linear` (nnx)
keep (in, out).
"""

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.layout import UNCHANGED, Permute

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
                linen=lambda nn: nn.Dense(3),
                nnx=lambda nnx, rngs: nnx.Linear(5, 3, rngs=rngs),
                input_shape=(7, 5),
            ),
            ForwardCase(
                "without bias, three axes",
                torch=lambda nn: nn.Linear(5, 3, bias=False),
                linen=lambda nn: nn.Dense(3, use_bias=False),
                nnx=lambda nnx, rngs: nnx.Linear(5, 3, use_bias=False, rngs=rngs),
                input_shape=(2, 7, 5),
            ),
        ),
    ),
)
