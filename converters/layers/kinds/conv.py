"""Conv1d, Conv2d, Conv3d: (O, I/groups, *k) → (*k, I/groups, O).

Flax uses channels last. Groups are `feature_group_count`, dilation is `kernel_dilation`. An integer
padding of torch is symmetric: pass it as pairs, never as "SAME". "SAME", Flax's default, is not
symmetric with a stride of 2 (measured error: 1.5). torch's "same" is "SAME". For another
`padding_mode`, pad the input with `jnp.pad` (circular: "wrap", reflect: "reflect", replicate:
"edge") and use no padding in the convolution.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.flax_call import (
    Api,
    FlaxCall,
    SourceCall,
    Value,
    changed,
    features,
    own,
    use_bias,
)
from converters.layers.layout import UNCHANGED, Permute

_PAD_MODES = {"circular": "wrap", "reflect": "reflect", "replicate": "edge"}


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    ones = (1,) * len(layer.kernel_size)
    padding, before = _padding(layer)
    settings = {
        "padding": padding,
        **changed(
            strides=(tuple(layer.stride), ones),
            kernel_dilation=(tuple(layer.dilation), ones),
            feature_group_count=(layer.groups, 1),
        ),
    }
    sizes = {
        **features(api, layer.in_channels, layer.out_channels),
        "kernel_size": tuple(layer.kernel_size),
        **use_bias(layer),
    }
    call = own(api, "Conv", sizes, settings=settings, before=before, channels_last=True)
    return (call,)


def _padding(layer: Any) -> tuple[Value, tuple[SourceCall, ...]]:
    """Return Flax's padding argument, and the call that pads the input for modes Flax lacks."""
    if layer.padding_mode != "zeros":
        # torch's padding order: the last axis first, low and high side of each.
        sides = layer._reversed_padding_repeated_twice
        pairs = tuple(zip(sides[::2], sides[1::2], strict=True))[::-1]
        mode: dict[str, Value] = {"mode": _PAD_MODES[layer.padding_mode]}
        return "VALID", (SourceCall("jax.numpy.pad", mode, (((0, 0), *pairs, (0, 0)),)),)
    if isinstance(layer.padding, str):
        return layer.padding.upper(), ()
    if not any(layer.padding):
        return "VALID", ()
    return tuple((side, side) for side in layer.padding), ()


def _case(
    name: str,
    channels: tuple[int, int],
    kernel: tuple[int, ...],
    input_sides: tuple[int, ...],
    **options: Any,
) -> ForwardCase:
    inputs, outputs = channels
    return ForwardCase(
        name,
        lambda nn: getattr(nn, f"Conv{len(kernel)}d")(inputs, outputs, kernel, **options),
        (2, inputs, *input_sides),
    )


def _entry(rank: int, *cases: ForwardCase) -> LayerEntry:
    return LayerEntry(
        kind=f"Conv{rank}d",
        doc=__doc__ or "",
        weights=(
            Weight("weight", "kernel", "kernel", Permute((*range(2, rank + 2), 1, 0))),
            Weight("bias", "bias", "bias", UNCHANGED),
        ),
        cases=cases,
        flax=_flax,
    )


ENTRIES = (
    _entry(
        1,
        _case("plain", (5, 4), (3,), (11,)),
        _case("groups", (10, 4), (3,), (11,), groups=2, bias=False),
        _case(
            "strided, padded, dilated",
            (5, 4),
            (3,),
            (11,),
            stride=(2,),
            padding=(2,),
            dilation=(3,),
        ),
    ),
    _entry(
        2,
        _case("plain", (6, 4), (3, 5), (11, 9)),
        _case("groups", (12, 4), (3, 5), (11, 9), groups=2, bias=False),
        _case("same, an even kernel", (6, 5), (2, 4), (7, 8), padding="same"),
        *(
            _case(
                f"padding_mode {mode}",
                (6, 4),
                (3, 5),
                (11, 9),
                stride=(1, 2),
                padding=(2, 1),
                padding_mode=mode,
            )
            for mode in _PAD_MODES
        ),
        _case(
            "same, an even kernel, padding_mode reflect",
            (6, 5),
            (2, 4),
            (7, 8),
            padding="same",
            padding_mode="reflect",
        ),
        _case("depthwise", (6, 6), (3, 5), (11, 9), groups=6),
        _case(
            "strided, padded, dilated",
            (6, 4),
            (3, 5),
            (11, 9),
            stride=(2, 1),
            padding=(1, 2),
            dilation=(1, 2),
        ),
    ),
    _entry(
        3,
        _case("plain", (6, 4), (2, 3, 5), (7, 8, 9)),
        _case("groups", (12, 4), (2, 3, 5), (7, 8, 9), groups=2, bias=False),
        _case(
            "strided, padded, dilated",
            (6, 4),
            (2, 3, 5),
            (7, 8, 11),
            stride=(1, 2, 1),
            padding=(1, 0, 2),
            dilation=(2, 1, 2),
        ),
    ),
)
