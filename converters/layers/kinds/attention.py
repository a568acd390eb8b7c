"""MultiheadAttention: the fused projections are split, with heads as a separate axis.

`in_proj_weight` (3 * embed, embed) becomes `query/kernel`, `key/kernel` and `value/kernel`, each
(embed, heads, features). With another kdim or vdim, q_proj_weight, k_proj_weight and v_proj_weight
do. Their biases are (heads, features), and `out/kernel` is (heads, features, embed). These are the
weights of Flax's own attention, which can be used without bias_k, bias_v and add_zero_attn. In nnx
it has one size for key and value, and needs `decode=False`.

Masks differ: torch's boolean masks mark what is NOT allowed, Flax's what is allowed.
`converters.modules`' MultiheadAttention takes torch's masks and has all of torch's options. A row
in which nothing is allowed is as in torch there: NaN with `need_weights`, else attention gives 0. In
Flax's own attention it is the mean of all values.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight, Weights
from converters.layers.flax_call import DETERMINISTIC, Api, FlaxCall, changed, has, ours, own
from converters.layers.layout import Merge, Part, Permute, Split, chain

_PROJECTIONS = ("query", "key", "value")


def _weights(layer: Any) -> Weights:
    embed, heads = layer.embed_dim, (layer.num_heads, layer.head_dim)
    inward = chain([Permute((1, 0)), Split(1, heads, "num_heads")])
    weights = []
    for index, name in enumerate(_PROJECTIONS):
        part = Part(0, index * embed, (index + 1) * embed, of=len(_PROJECTIONS))
        kernel, bias = f"{name}/kernel", f"{name}/bias"
        if layer._qkv_same_embed_dim:
            weights.append(Weight("in_proj_weight", kernel, kernel, inward, part=part))
        else:
            weights.append(Weight(f"{name[0]}_proj_weight", kernel, kernel, inward))
        weights.append(Weight("in_proj_bias", bias, bias, Split(0, heads, "num_heads"), part=part))
    outward = chain([Permute((1, 0)), Split(0, heads, "num_heads")])
    weights.append(Weight("out_proj.weight", "out/kernel", "out/kernel", outward))
    weights.append(Weight("out_proj.bias", "out/bias", "out/bias"))
    row = chain([Merge(0, (1, 1, embed), ""), Split(0, heads, "num_heads")])
    weights += [Weight(name, name, name, row) for name in ("bias_k", "bias_v")]
    return tuple(weights)


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    nnx, width, bias = api == "nnx", layer.embed_dim, has(layer, "in_proj_bias")
    keys, values = layer.kdim, layer.vdim
    rate = layer.dropout
    options = {"deterministic": DETERMINISTIC} if rate and not nnx else {}
    calls = []
    if layer.bias_k is None and not layer.add_zero_attn and not (nnx and keys != values):
        inputs = {"in_features": width, **changed(in_kv_features=(keys, width))} if nnx else {}
        calls.append(
            own(
                api,
                "MultiHeadAttention" if nnx else "MultiHeadDotProductAttention",
                {**inputs, **changed(use_bias=(bias, True))},
                settings={
                    "num_heads": layer.num_heads,
                    **changed(dropout_rate=(rate, 0.0)),
                    **({"decode": False} if nnx else {}),
                },
                options=options,
                called_otherwise="torch's boolean masks mean the opposite of Flax's"
                + ("" if layer.batch_first else ", whose inputs are batch first"),
            )
        )
    others = changed(kdim=(keys, width), vdim=(values, width)) if nnx else {}
    more = changed(bias=(bias, True), add_bias_kv=(layer.bias_k is not None, False))
    settings = changed(
        dropout=(rate, 0.0),
        add_zero_attn=(layer.add_zero_attn, False),
        batch_first=(layer.batch_first, False),
    )
    calls.append(
        ours(
            api,
            "MultiheadAttention",
            {"embed_dim": width, **others, **more},
            settings={"num_heads": layer.num_heads, **settings},
            options=options,
        )
    )
    return tuple(calls)


def _floats(*shapes: tuple[int, ...], names: tuple[str, ...] = ("key", "value")) -> Any:
    def arguments(rng: Any) -> dict[str, Any]:
        arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
        return dict(zip(names, arrays, strict=True))

    return arguments


def _case(
    name: str, *, masks: Any = lambda rng: {}, call_options: Any = None, **options: Any
) -> Any:
    """Create a case with query (batch 2, length 5), key and value (batch 2, length 7)."""
    shapes = [(2, 5, 12), (2, 7, options.get("kdim", 12)), (2, 7, options.get("vdim", 12))]
    if not options.get("batch_first", False):
        shapes = [(b, a, features) for a, b, features in shapes]
    return ForwardCase(
        name,
        torch=lambda nn: nn.MultiheadAttention(12, 3, **options),
        input_shape=shapes[0],
        of="converters.modules",
        arguments=lambda rng: {**_floats(*shapes[1:])(rng), **masks(rng)},
        options=call_options or {},
    )


def _padding(rng: Any) -> dict[str, Any]:
    """Mask the last keys of each sequence, with torch's polarity."""
    lengths = rng.integers(3, 6, (2, 1))
    return {"key_padding_mask": rng.permuted([[0, 1, 2, 3, 4, 5, 6]] * 2, axis=1) >= lengths}


def _causal(rng: Any) -> dict[str, Any]:
    ones = rng.random((5, 7)) >= 0
    return {"attn_mask": ones & (rng.random((5, 7)) > 0.5) & (ones.cumsum(1) > 1)}


def _both(rng: Any) -> dict[str, Any]:
    added = rng.standard_normal((6, 5, 7)).astype("float32")
    padded = rng.standard_normal((2, 7)).astype("float32")
    return {"attn_mask": added, "key_padding_mask": padded}


def _call_self(layer: Any, inputs: Any, arguments: Any) -> Any:
    return layer(inputs, inputs, inputs, need_weights=False)[0]


def _native(name: str, bias: bool, dropout: float = 0.0) -> ForwardCase:
    """Create a case of Flax's own layers with the same weights, on one sequence."""
    return ForwardCase(
        name,
        torch=lambda nn: nn.MultiheadAttention(12, 3, dropout, bias=bias, batch_first=True),
        input_shape=(2, 5, 12),
        torch_call=_call_self,
    )


ENTRIES = (
    LayerEntry(
        kind="MultiheadAttention",
        doc=__doc__,
        weights=_weights,
        cases=(
            _native("Flax's own", True),
            _native("Flax's own, without bias", False, dropout=0.1),
            _case("length first", dropout=0.1),
            _case("batch first, without bias", batch_first=True, bias=False),
            _case("other sizes of key and value", kdim=4, vdim=9),
            _case("bias_k and bias_v, masks", add_bias_kv=True, masks=_padding),
            _case("a key of zeros, masks", add_zero_attn=True, masks=_causal),
            _case("all options", add_bias_kv=True, add_zero_attn=True, kdim=4, vdim=9, masks=_both),
            _case("masks that are added", batch_first=True, masks=_both),
            _case("without weights", masks=_padding, call_options={"need_weights": False}),
            _case(
                "weights of each head",
                masks=_causal,
                call_options={"average_attn_weights": False},
            ),
            ForwardCase(
                "without a batch",
                torch=lambda nn: nn.MultiheadAttention(12, 3),
                input_shape=(5, 12),
                of="converters.modules",
                arguments=_floats((7, 12), (7, 12)),
            ),
        ),
        flax=_flax,
    ),
)
