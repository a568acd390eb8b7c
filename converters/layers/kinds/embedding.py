"""Embedding: `embedding = weight`, unchanged (rows are tokens on both sides).

Flax's `Embed` has no `padding_idx` (which only keeps that row's gradient at zero) and no
`max_norm`. Ids out of range raise in torch; in Flax they give NaN, and negative ones count from the
end.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.layout import UNCHANGED


def _note(layer: Any) -> str:
    notes = []
    if layer.padding_idx is not None:
        notes.append(
            f"padding_idx={layer.padding_idx} has no Flax form: mask its gradient yourself"
        )
    if layer.max_norm is not None:
        notes.append(f"max_norm={layer.max_norm} has no Flax form: the forward pass differs")
    return "; ".join(notes)


ENTRIES = (
    LayerEntry(
        kind="Embedding",
        doc=__doc__,
        weights=(Weight("weight", "embedding", "embedding", UNCHANGED),),
        cases=(
            ForwardCase(
                "ids of two axes",
                torch=lambda nn: nn.Embedding(11, 5),
                linen=lambda nn: nn.Embed(11, 5),
                nnx=lambda nnx, rngs: nnx.Embed(11, 5, rngs=rngs),
                input_shape=(2, 7),
                ids_below=11,
            ),
        ),
        note=_note,
    ),
)
