"""Transformer and its parts: each layer inside is converted by its own kind, under its own name.

`self_attn`, `multihead_attn`, `linear1`, `linear2` and the norms keep their names. The weights are
those of `converters.modules`' layers of the same names, which take torch's masks. torch's norms
come last by default (`norm_first=False`), its "gelu" is the exact one, and its dropout is 0.1. With
a padding mask, torch's encoder may compute only unmasked positions in inference and return 0 for
the others; the layer of `converters.modules` returns values for those positions too.
"""

from collections.abc import Callable
from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry
from converters.layers.flax_call import DETERMINISTIC, Api, FlaxCall, Maker, Value, changed, ours
from converters.layers.kinds import layer_norm

_SMALL = {"dim_feedforward": 7, "dropout": 0.0}
_OTHER = {**_SMALL, "activation": "gelu", "norm_first": True, "bias": False, "layer_norm_eps": 0.1}

# Attributes that fully describe a part, by its torch class.
_PARTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "MultiheadAttention": lambda part: (
        part.embed_dim,
        part.num_heads,
        part.dropout,
        part.batch_first,
        part.in_proj_bias is not None,
        part.bias_k is not None,
        part.add_zero_attn,
        part._qkv_same_embed_dim,
    ),
    "Linear": lambda part: (part.in_features, part.out_features, part.bias is not None),
    "LayerNorm": lambda part: (
        part.normalized_shape,
        part.eps,
        part.weight is not None,
        part.bias is not None,
    ),
    "Dropout": lambda part: (part.p,),
}


def _description(part: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the class of a part of torch's own, and the attributes that fully describe it."""
    name = type(part).__name__
    is_known = name in _PARTS and type(part).__module__.startswith("torch.nn.modules.")
    return (name, _PARTS[name](part)) if is_known else ("", ())


def _settings(layer: Any) -> dict[str, Value] | None:
    """Return the arguments of an encoder or decoder layer; None if a part differs from what they create."""
    from torch.nn import functional

    activations = {functional.relu: "relu", functional.gelu: "gelu"}
    activation = activations.get(layer.activation)
    parts = {name: _description(part) for name, part in layer.named_children()}
    kinds = [parts[name][0] for name in ("self_attn", "linear1", "norm1", "dropout")]
    if activation is None or kinds != list(_PARTS):
        return None
    width, heads, _, first, bias, *_ = parts["self_attn"][1]
    inner, rate, eps = layer.linear1.out_features, layer.dropout.p, layer.norm1.eps
    arguments = {
        "MultiheadAttention": (width, heads, rate, first, bias, False, False, True),
        "LayerNorm": ((width,), eps, True, bias),
        "Dropout": (rate,),
        "linear1": (width, inner, bias),
        "linear2": (inner, width, bias),
    }
    if any(
        settings != arguments.get(kind, arguments.get(name))
        for name, (kind, settings) in parts.items()
    ):
        return None
    return {
        "d_model": width,
        "nhead": heads,
        **changed(
            dim_feedforward=(inner, 2048),
            dropout=(rate, 0.1),
            activation=(activation, "relu"),
            layer_norm_eps=(eps, 1e-5),
            batch_first=(first, False),
            norm_first=(layer.norm_first, False),
            bias=(bias, True),
        ),
    }


def _layer_flax(kind: str) -> Any:
    def flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
        settings = _settings(layer)
        if settings is None:
            return ()
        return (ours(api, kind, {}, settings=settings, options=_options(api, settings)),)

    return flax


def _stack_flax(kind: str) -> Any:
    def flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
        inside = _repeated(layer)
        if inside is None:
            return ()
        layer_call = ours(api, f"{kind}Layer", {}, settings=inside).construction
        sizes: dict[str, Value] = {"layer": Maker(layer_call), "num_layers": len(layer.layers)}
        if layer.norm is not None:
            norm = layer_norm.flax(layer.norm, api)[0].construction
            sizes |= {"final_norm": Maker(norm)} if api == "linen" else {"norm": norm}
        options = _options(api, inside)
        return (ours(api, kind, sizes, takes_rngs=False, options=options),)

    return flax


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    stacks = (layer.encoder, layer.decoder)
    forms = [_repeated(stack) for stack in stacks]
    inside = forms[0]
    if inside is None or forms[1] != inside:
        return ()
    # With a norm at the end of each half, with the settings of the inner norms.
    if {_description(stack.norm) for stack in stacks} != {
        _description(layer.encoder.layers[0].norm1)
    }:
        return ()
    numbers = changed(
        num_encoder_layers=(len(layer.encoder.layers), 6),
        num_decoder_layers=(len(layer.decoder.layers), 6),
    )
    settings = {**inside, **numbers}
    return (ours(api, "Transformer", {}, settings=settings, options=_options(api, inside)),)


def _repeated(stack: Any) -> dict[str, Value] | None:
    """Return the common arguments of a stack's layers; None if they differ, or a part is not torch's
    own."""
    is_known = all(type(inner).__name__ in _LAYERS for inner in getattr(stack, "layers", ()))
    forms = [_settings(inner) for inner in stack.layers] if is_known else []
    if not forms or any(form != forms[0] for form in forms):
        return None
    return forms[0] if stack.norm is None or _description(stack.norm)[0] == "LayerNorm" else None


def _options(api: Api, settings: dict[str, Value]) -> dict[str, Value]:
    """Return the call options; nnx's dropout uses the model's `eval()` and `train()`."""
    drops = api == "linen" and settings.get("dropout", 0.1) != 0.0
    return {"deterministic": DETERMINISTIC} if drops else {}


def _float(name: str, *shape: int) -> Any:
    return lambda rng: {name: rng.standard_normal(shape).astype("float32")}


def _encoder_masks(rng: Any) -> dict[str, Any]:
    """Return a causal mask, and a padding mask with two positions of the first sequence."""
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
        input_shape=shape,
        arguments=arguments,
    )


def _stack(part: str, arguments: Any) -> ForwardCase:
    """Create a case with two layers and a norm at the end."""
    kind, stack = f"Transformer{part}Layer", f"Transformer{part}"
    extra = {"enable_nested_tensor": False} if part == "Encoder" else {}

    def torch_stack(nn: Any) -> Any:
        layer = getattr(nn, kind)(12, 3, **_SMALL)
        return getattr(nn, stack)(layer, 2, norm=nn.LayerNorm(12), **extra)

    return ForwardCase(
        "two layers and a norm",
        torch_stack,
        (5, 2, 12),
        arguments=arguments,
    )


def _whole() -> ForwardCase:
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, **_SMALL, "batch_first": True}
    return ForwardCase(
        "one layer each, batch first",
        torch=lambda nn: nn.Transformer(12, 4, **sizes),
        input_shape=(2, 7, 12),
        arguments=_float("tgt", 2, 5, 12),
    )


_LAYERS = ("TransformerEncoderLayer", "TransformerDecoderLayer")


def _entry(kind: str, *cases: ForwardCase) -> LayerEntry:
    flax = _layer_flax(kind) if kind in _LAYERS else _stack_flax(kind)
    return LayerEntry(kind, __doc__ or "", (), cases, _flax if kind == "Transformer" else flax)


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
