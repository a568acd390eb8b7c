"""MultiheadAttention: the fused projections taken apart, heads as axes of their own.

`in_proj_weight` (3 * embed, embed) becomes `query/kernel`, `key/kernel` and `value/kernel`, each
(embed, heads, features); with another kdim or vdim, q_proj_weight, k_proj_weight and v_proj_weight do. Their
biases are (heads, features), `out/kernel` is (heads, features, embed). These are the weights of Flax's own
attention, which serves where there is neither bias_k and bias_v nor add_zero_attn. In nnx it has one size for
key and value, and is to be told `decode=False`.

Beware of masks: torch's boolean ones say what is NOT allowed, Flax's what is. `converters.modules`'
MultiheadAttention takes torch's masks, and has all of torch's options. A row in which nothing is allowed is
NaN in torch and there; in Flax's own it is finite.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight, Weights, ours
from converters.layers.layout import Merge, Part, Permute, Split, chain

_PROJECTIONS = ("query", "key", "value")


def _weights(layer: Any) -> Weights:
    embed, heads = layer.embed_dim, (layer.num_heads, layer.head_dim)
    inward = chain([Permute((1, 0)), Split(1, heads)])
    found = []
    for index, name in enumerate(_PROJECTIONS):
        part = Part(0, index * embed, (index + 1) * embed)
        kernel, bias = f"{name}/kernel", f"{name}/bias"
        if layer._qkv_same_embed_dim:
            found.append(Weight("in_proj_weight", kernel, kernel, inward, part=part))
        else:
            found.append(Weight(f"{name[0]}_proj_weight", kernel, kernel, inward))
        found.append(Weight("in_proj_bias", bias, bias, Split(0, heads), part=part))
    outward = chain([Permute((1, 0)), Split(0, heads)])
    found.append(Weight("out_proj.weight", "out/kernel", "out/kernel", outward))
    found.append(Weight("out_proj.bias", "out/bias", "out/bias"))
    row = chain([Merge(0, (1, 1, embed)), Split(0, heads)])
    found += [Weight(name, name, name, row) for name in ("bias_k", "bias_v")]
    return tuple(found)


def _note(layer: Any) -> str:
    told = f"num_heads={layer.num_heads}; torch's boolean masks mean the opposite of Flax's"
    if layer.bias_k is not None or layer.add_zero_attn:
        return f"converters.modules: MultiheadAttention; {told}"
    return told


def _floats(*shapes: tuple[int, ...], names: tuple[str, ...] = ("key", "value")) -> Any:
    def arguments(rng: Any) -> dict[str, Any]:
        made = [rng.standard_normal(shape).astype("float32") for shape in shapes]
        return dict(zip(names, made, strict=True))

    return arguments


def _case(
    name: str, *, masks: Any = lambda rng: {}, torch_options: Any = None, **given: Any
) -> Any:
    """Query (batch 2, 5 long), key and value (batch 2, 7 long); kdim and vdim as given."""
    kdim, vdim = given.get("kdim", 12), given.get("vdim", 12)
    first = given.get("batch_first", False)
    shapes = [(2, 5, 12), (2, 7, kdim), (2, 7, vdim)]
    if not first:
        shapes = [(b, a, features) for a, b, features in shapes]
    linen_given = {key: value for key, value in given.items() if key not in ("kdim", "vdim")}
    call_options = torch_options or {}

    def call(layer: Any, query: Any, arguments: Any) -> Any:
        return layer(query, **arguments, **call_options)

    return ForwardCase(
        name,
        torch=lambda nn: nn.MultiheadAttention(12, 3, **given),
        linen=lambda nn: ours("linen").MultiheadAttention(12, 3, **linen_given),
        nnx=lambda nnx, rngs: ours("nnx").MultiheadAttention(12, 3, rngs=rngs, **given),
        input_shape=shapes[0],
        arguments=lambda rng: {**_floats(*shapes[1:])(rng), **masks(rng)},
        torch_call=call,
        flax_call=call,
    )


def _padding(rng: Any) -> dict[str, Any]:
    """The last keys of each sequence do not count; torch's polarity."""
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


def _native(name: str, bias: bool) -> ForwardCase:
    """Flax's own layers with the same weights, on one sequence."""

    def nnx_layer(nnx: Any, rngs: Any) -> Any:
        return nnx.MultiHeadAttention(3, 12, use_bias=bias, decode=False, rngs=rngs)

    return ForwardCase(
        name,
        torch=lambda nn: nn.MultiheadAttention(12, 3, bias=bias, batch_first=True),
        linen=lambda nn: nn.MultiHeadDotProductAttention(num_heads=3, use_bias=bias),
        nnx=nnx_layer,
        input_shape=(2, 5, 12),
        torch_call=_call_self,
        flax_call=lambda layer, inputs, arguments: layer(inputs),
    )


ENTRIES = (
    LayerEntry(
        kind="MultiheadAttention",
        doc=__doc__,
        weights=_weights,
        cases=(
            _native("Flax's own", True),
            _native("Flax's own, without bias", False),
            _case("length first"),
            _case("batch first, without bias", batch_first=True, bias=False),
            _case("other sizes of key and value", kdim=4, vdim=9),
            _case("bias_k and bias_v, masks", add_bias_kv=True, masks=_padding),
            _case("a key of zeros, masks", add_zero_attn=True, masks=_causal),
            _case("all options", add_bias_kv=True, add_zero_attn=True, kdim=4, vdim=9, masks=_both),
            _case("masks that are added", batch_first=True, masks=_both),
            _case("without weights", masks=_padding, torch_options={"need_weights": False}),
            _case(
                "weights of each head",
                masks=_causal,
                torch_options={"average_attn_weights": False},
            ),
            ForwardCase(
                "without a batch",
                torch=lambda nn: nn.MultiheadAttention(12, 3),
                linen=lambda nn: ours("linen").MultiheadAttention(12, 3),
                nnx=lambda nnx, rngs: ours("nnx").MultiheadAttention(12, 3, rngs=rngs),
                input_shape=(5, 12),
                arguments=_floats((7, 12), (7, 12)),
            ),
        ),
        note=_note,
    ),
)
