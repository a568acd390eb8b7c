"""Transformer and its parts: each layer inside is converted as what it is, under its own name.

`self_attn`, `multihead_attn`, `linear1`, `linear2` and the norms keep their names, so the weights are those
of `converters.modules`' layers of the same names, which take torch's masks. torch's norms come last by
default (`norm_first=False`), its "gelu" is the exact one, its dropout 0.1. With a padding mask torch's
encoder may compute in inference only what counts and give 0 for the rest; ours gives those positions like
any other.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, ours

_SMALL = {"dim_feedforward": 7, "dropout": 0.0}
_OTHER = {**_SMALL, "activation": "gelu", "norm_first": True, "bias": False, "layer_norm_eps": 0.1}


def _float(name: str, *shape: int) -> Any:
    return lambda rng: {name: rng.standard_normal(shape).astype("float32")}


def _encoder_masks(rng: Any) -> dict[str, Any]:
    """No position sees a later one, and two positions of the first sequence do not count."""
    padding = rng.random((2, 5)) > 2
    padding[0, 3:] = True
    later = rng.random((5, 5)) >= 0
    for row in range(5):
        later[row, : row + 1] = False
    return {"mask": later, "src_key_padding_mask": padding}


def _layer_masks(rng: Any) -> dict[str, Any]:
    masks = _encoder_masks(rng)
    return {"src_mask": masks.pop("mask"), **masks}


def _decoder_inputs(rng: Any) -> dict[str, Any]:
    masks = _encoder_masks(rng)
    return {
        **_float("memory", 7, 2, 12)(rng),
        "tgt_mask": masks["mask"],
        "tgt_key_padding_mask": masks["src_key_padding_mask"],
        "memory_mask": rng.standard_normal((5, 7)).astype("float32"),
    }


def _layer(kind: str, name: str, options: dict[str, Any], shape: Any, arguments: Any) -> Any:
    return ForwardCase(
        name,
        torch=lambda nn: getattr(nn, kind)(12, 3, **options),
        linen=lambda nn: getattr(ours("linen"), kind)(12, 3, **options),
        nnx=lambda nnx, rngs: getattr(ours("nnx"), kind)(12, 3, rngs=rngs, **options),
        input_shape=shape,
        arguments=arguments,
    )


def _stack(part: str, arguments: Any) -> ForwardCase:
    """Two layers and a norm at the end."""
    kind, stack = f"Transformer{part}Layer", f"Transformer{part}"
    extra = {"enable_nested_tensor": False} if part == "Encoder" else {}

    def torch_stack(nn: Any) -> Any:
        layer = getattr(nn, kind)(12, 3, **_SMALL)
        return getattr(nn, stack)(layer, 2, norm=nn.LayerNorm(12), **extra)

    def linen_stack(nn: Any) -> Any:
        layers, norm = ours("linen"), nn.LayerNorm
        return getattr(layers, stack)(
            lambda: getattr(layers, kind)(12, 3, **_SMALL),
            2,
            lambda: norm(epsilon=1e-5, use_fast_variance=False),
        )

    def nnx_stack(nnx: Any, rngs: Any) -> Any:
        layers = ours("nnx")
        norm = nnx.LayerNorm(12, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        return getattr(layers, stack)(
            lambda: getattr(layers, kind)(12, 3, rngs=rngs, **_SMALL), 2, norm
        )

    return ForwardCase(
        "two layers and a norm",
        torch_stack,
        linen_stack,
        nnx_stack,
        (5, 2, 12),
        arguments=arguments,
    )


def _whole() -> ForwardCase:
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, **_SMALL, "batch_first": True}
    return ForwardCase(
        "one layer each, batch first",
        torch=lambda nn: nn.Transformer(12, 4, **sizes),
        linen=lambda nn: ours("linen").Transformer(d_model=12, nhead=4, **sizes),
        nnx=lambda nnx, rngs: ours("nnx").Transformer(12, 4, rngs=rngs, **sizes),
        input_shape=(2, 7, 12),
        arguments=_float("tgt", 2, 5, 12),
    )


def _entry(kind: str, *cases: ForwardCase) -> LayerEntry:
    return LayerEntry(kind, __doc__ or "", (), cases)


ENTRIES = (
    _entry(
        "TransformerEncoderLayer",
        _layer("TransformerEncoderLayer", "masks", _SMALL, (5, 2, 12), _layer_masks),
        _layer(
            "TransformerEncoderLayer",
            "norms first, gelu, no bias, batch first",
            {**_OTHER, "batch_first": True},
            (2, 5, 12),
            _layer_masks,
        ),
    ),
    _entry(
        "TransformerDecoderLayer",
        _layer("TransformerDecoderLayer", "masks", _SMALL, (5, 2, 12), _decoder_inputs),
        _layer(
            "TransformerDecoderLayer",
            "norms first, gelu, no bias",
            _OTHER,
            (5, 2, 12),
            _decoder_inputs,
        ),
    ),
    _entry("TransformerEncoder", _stack("Encoder", _encoder_masks)),
    _entry("TransformerDecoder", _stack("Decoder", _decoder_inputs)),
    _entry("Transformer", _whole()),
)
