"""EmbeddingBag: `embedding = weight`, unchanged.

Flax has no such layer. `converters.modules` has one, with modes sum, mean and max, ids of two axes
or with offsets, per_sample_weights, and padding_idx. It has no `max_norm`. `scale_grad_by_freq` and
`sparse` affect only gradients and have no counterpart.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.flax_call import Api, FlaxCall, changed, ours

_MODES = ("sum", "mean", "max")


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    sizes = {"num_embeddings": layer.num_embeddings, "features": layer.embedding_dim}
    settings = {
        "mode": layer.mode,
        **changed(
            padding_idx=(layer.padding_idx, None),
            include_last_offset=(layer.include_last_offset, False),
        ),
    }
    differs = f"max_norm={layer.max_norm} has no Flax form: the forward pass differs"
    lost = () if layer.max_norm is None else (differs,)
    return (ours(api, "EmbeddingBag", sizes, settings=settings, differs=lost),)


def _case(
    name: str,
    shape: tuple[int, ...],
    arguments: Callable[[Any], Mapping[str, Any]] = lambda rng: {},
    **options: Any,
) -> ForwardCase:
    return ForwardCase(
        name,
        torch=lambda nn: nn.EmbeddingBag(11, 5, **options),
        input_shape=shape,
        ids_below=4,  # few ids, so that the ignored id is sure to occur
        arguments=arguments,
    )


def _offsets(rng: Any) -> dict[str, Any]:
    """Bags of 3, 0, 4 and 2 ids."""
    return {"offsets": np.array([0, 3, 3, 7])}


def _factors(rng: Any) -> dict[str, Any]:
    return {"per_sample_weights": rng.standard_normal((3, 7)).astype("float32")}


def _all(rng: Any) -> dict[str, Any]:
    factors = rng.standard_normal(9).astype("float32")
    return {"offsets": np.array([0, 3, 3, 9]), "per_sample_weights": factors}


ENTRIES = (
    LayerEntry(
        kind="EmbeddingBag",
        doc=__doc__,
        weights=(Weight("weight", "embedding", "embedding"),),
        cases=(
            *(_case(f"{mode}, two axes", (3, 7), mode=mode) for mode in _MODES),
            *(_case(f"{mode}, offsets", (9,), _offsets, mode=mode) for mode in _MODES),
            *(
                _case(
                    f"{mode}, an id that does not count", (9,), _offsets, mode=mode, padding_idx=2
                )
                for mode in _MODES
            ),
            _case("weights of samples", (3, 7), _factors, mode="sum"),
            _case("last offset, weights", (9,), _all, mode="sum", include_last_offset=True),
        ),
        flax=_flax,
    ),
)
