"""Conv1d, Conv2d, Conv3d: (O, I/groups, *k) → (*k, I/groups, O).

Flax works channels last. Groups are `feature_group_count`, dilation is `kernel_dilation`. An
integer padding of torch is symmetric: pass it as pairs, never as "SAME", which is not symmetric
with a stride of 2 (measured error: 1.5) and is Flax's default; torch's "same" is "SAME". For
another `padding_mode` pad the input with `jnp.pad` (circular: "wrap", reflect: "reflect",
replicate: "edge") and let the convolution pad nothing.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.layout import UNCHANGED, Permute


def _case(
    name: str,
    channels: tuple[int, int],
    kernel: tuple[int, ...],
    input_sides: tuple[int, ...],
    *,
    stride: tuple[int, ...] | None = None,
    padding: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
    bias: bool = True,
) -> ForwardCase:
    """One convolution, its arguments written for torch and for Flax."""
    inputs, outputs = channels
    rank = len(kernel)
    stride = stride or (1,) * rank
    padding = padding or (0,) * rank
    dilation = dilation or (1,) * rank
    torch_arguments: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": bias,
    }
    flax_arguments: dict[str, Any] = {
        "strides": stride,
        "padding": [(side, side) for side in padding],
        "kernel_dilation": dilation,
        "feature_group_count": groups,
        "use_bias": bias,
    }
    return ForwardCase(
        name,
        torch=lambda nn: getattr(nn, f"Conv{rank}d")(inputs, outputs, kernel, **torch_arguments),
        linen=lambda nn: nn.Conv(outputs, kernel, **flax_arguments),
        nnx=lambda nnx, rngs: nnx.Conv(inputs, outputs, kernel, rngs=rngs, **flax_arguments),
        input_shape=(2, inputs, *input_sides),
        channels_last=True,
    )


_PAD_MODES = {"circular": "wrap", "reflect": "reflect", "replicate": "edge"}


def _padded(mode: str) -> ForwardCase:
    """A padding mode, as `jnp.pad` before the convolution."""

    def call(layer: Any, inputs: Any, arguments: Any) -> Any:
        import jax.numpy as jnp

        pads = [(0, 0), (2, 2), (1, 1), (0, 0)]
        return layer(jnp.pad(inputs, pads, mode=_PAD_MODES[mode]))

    return ForwardCase(
        f"padding_mode {mode}",
        torch=lambda nn: nn.Conv2d(6, 4, (3, 5), stride=(1, 2), padding=(2, 1), padding_mode=mode),
        linen=lambda nn: nn.Conv(4, (3, 5), strides=(1, 2), padding="VALID"),
        nnx=lambda nnx, rngs: nnx.Conv(6, 4, (3, 5), strides=(1, 2), padding="VALID", rngs=rngs),
        input_shape=(2, 6, 11, 9),
        channels_last=True,
        flax_call=call,
    )


_SAME = ForwardCase(
    "same, an even kernel",
    torch=lambda nn: nn.Conv2d(6, 5, (2, 4), padding="same"),
    linen=lambda nn: nn.Conv(5, (2, 4), padding="SAME"),
    nnx=lambda nnx, rngs: nnx.Conv(6, 5, (2, 4), padding="SAME", rngs=rngs),
    input_shape=(2, 6, 7, 8),
    channels_last=True,
)


def _note(layer: Any) -> str:
    padding: Any = layer.padding
    if isinstance(padding, str):
        told = f"padding={padding.upper()!r}"
    elif layer.padding_mode != "zeros":
        mode = _PAD_MODES[layer.padding_mode]
        told = f"jnp.pad(…, mode={mode!r}) by {list(padding)} first, padding='VALID'"
    else:
        told = f"padding={[(side, side) for side in padding]}"
    if set(layer.stride) != {1}:
        told += f", strides={tuple(layer.stride)}"
    if set(layer.dilation) != {1}:
        told += f", kernel_dilation={tuple(layer.dilation)}"
    if layer.groups != 1:
        told += f", feature_group_count={layer.groups}"
    return told


def _entry(rank: int, *cases: ForwardCase) -> LayerEntry:
    return LayerEntry(
        kind=f"Conv{rank}d",
        doc=__doc__ or "",
        weights=(
            Weight("weight", "kernel", "kernel", Permute((*range(2, rank + 2), 1, 0))),
            Weight("bias", "bias", "bias", UNCHANGED),
        ),
        cases=cases,
        note=_note,
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
        _SAME,
        *(_padded(mode) for mode in _PAD_MODES),
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
