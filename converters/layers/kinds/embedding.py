"""Embedding: `embedding = weight`, unchanged (rows are tokens on both sides).

Flax's `Embed` has no `padding_idx` (which only keeps that row's gradient at zero) and no
`max_norm`. Ids out of range raise in torch. In Flax they give NaN, and negative ids count from the
end.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.flax_call import Api, FlaxCall, own
from converters.layers.layout import UNCHANGED


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    sizes = {"num_embeddings": layer.num_embeddings, "features": layer.embedding_dim}
    padding, norm = layer.padding_idx, layer.max_norm
    lost = f"padding_idx={padding} has no Flax form: mask its gradient yourself"
    differs = f"max_norm={norm} has no Flax form: the forward pass differs"
    return (
        own(
            api,
            "Embed",
            sizes,
            remarks=() if padding is None else (lost,),
            differs=() if norm is None else (differs,),
        ),
    )


ENTRIES = (
    LayerEntry(
        kind="Embedding",
        doc=__doc__,
        weights=(Weight("weight", "embedding", "embedding", UNCHANGED),),
        cases=(
            ForwardCase(
                "ids of two axes",
                torch=lambda nn: nn.Embedding(11, 5),
                input_shape=(2, 7),
                ids_below=11,
            ),
        ),
        flax=_flax,
    ),
)
