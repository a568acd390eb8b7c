"""ConvTranspose1d, 2d, 3d: (I, O/groups, *k) → (*k, I/groups, O), flipped along space.

This is the kernel of Flax's `ConvTranspose` with its default `transpose_kernel=False`. Flax's
padding is that of the convolution that it runs: for each axis `lo = dilation * (k - 1) - padding`
and `hi = lo + output_padding` with torch's arguments. Flax has no groups here.
`converters.modules`' ConvTranspose has groups, and takes torch's padding and output_padding.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight, Weights
from converters.layers.flax_call import Api, FlaxCall, changed, features, ours, own, use_bias
from converters.layers.layout import Flip, Merge, Permute, Split, chain


def _weights(layer: Any) -> Weights:
    rank, groups = len(layer.kernel_size), layer.groups
    space = tuple(range(rank))
    if groups == 1:
        layout = chain([Permute((*range(2, rank + 2), 0, 1)), Flip(space)])
    else:
        # (g, I/g, O/g, *k) → (*k, I/g, g, O/g): the outputs of each group are adjacent.
        apart = Split(0, (groups, layer.in_channels // groups), "groups")
        moved = Permute((*range(3, rank + 3), 1, 0, 2))
        joined = Merge(rank + 1, (groups, layer.out_channels // groups), "groups")
        layout = chain([apart, moved, joined, Flip(space)])
    return (Weight("weight", "kernel", "kernel", layout), Weight("bias", "bias", "bias"))


def _flax(layer: Any, api: Api) -> tuple[FlaxCall, ...]:
    ones, zeros = (1,) * len(layer.kernel_size), (0,) * len(layer.kernel_size)
    sizes = {
        **features(api, layer.in_channels, layer.out_channels),
        "kernel_size": tuple(layer.kernel_size),
        **use_bias(layer),
    }
    common = changed(
        strides=(tuple(layer.stride), ones), kernel_dilation=(tuple(layer.dilation), ones)
    )
    torch_settings = changed(
        padding=(tuple(layer.padding), zeros),
        output_padding=(tuple(layer.output_padding), zeros),
        groups=(layer.groups, 1),
    )
    calls = []
    if layer.groups == 1:
        padded = {**common, "padding": _pads(layer)}
        calls.append(own(api, "ConvTranspose", sizes, settings=padded, channels_last=True))
    settings = {**common, **torch_settings}
    calls.append(ours(api, "ConvTranspose", sizes, settings=settings, channels_last=True))
    return tuple(calls)


def _pads(layer: Any) -> tuple[tuple[int, int], ...]:
    """Return Flax's padding for torch's arguments."""
    sides = zip(layer.kernel_size, layer.dilation, layer.padding, layer.output_padding, strict=True)
    return tuple((d * (k - 1) - p, d * (k - 1) - p + more) for k, d, p, more in sides)


def _case(
    name: str,
    channels: tuple[int, int],
    kernel: tuple[int, ...],
    sides: tuple[int, ...],
    of: str = "",
    **options: Any,
) -> ForwardCase:
    inputs, outputs = channels
    return ForwardCase(
        name,
        lambda nn: getattr(nn, f"ConvTranspose{len(kernel)}d")(inputs, outputs, kernel, **options),
        (2, inputs, *sides),
        of,
    )


def _entry(rank: int, *cases: ForwardCase) -> LayerEntry:
    return LayerEntry(f"ConvTranspose{rank}d", __doc__ or "", _weights, cases, _flax)


ENTRIES = (
    _entry(
        1,
        _case("Flax's own", (5, 4), (3,), (7,), stride=(2,), padding=(1,), output_padding=(1,)),
        _case("one group", (6, 4), (3,), (7,), "converters.modules", stride=2, output_padding=1),
        _case(
            "groups", (6, 8), (3,), (7,), stride=(2,), padding=(1,), output_padding=(1,), groups=2
        ),
    ),
    _entry(
        2,
        _case("Flax's own", (6, 4), (3, 5), (8, 7)),
        _case(
            "Flax's own, strided, padded, dilated",
            (6, 4),
            (3, 5),
            (8, 7),
            stride=(2, 3),
            padding=(1, 2),
            output_padding=(1, 2),
            dilation=(2, 1),
        ),
        _case(
            "groups, strided, padded, dilated",
            (6, 9),
            (2, 5),
            (8, 7),
            stride=(2, 3),
            padding=(1, 2),
            output_padding=(1, 2),
            dilation=(2, 1),
            groups=3,
            bias=False,
        ),
        _case("depthwise", (6, 6), (3, 5), (8, 7), stride=(2, 1), groups=6),
    ),
    _entry(
        3,
        _case(
            "Flax's own",
            (6, 5),
            (2, 3, 4),
            (3, 4, 5),
            stride=(1, 2, 3),
            padding=(1, 0, 2),
            output_padding=(0, 1, 2),
        ),
        _case(
            "groups",
            (6, 10),
            (2, 3, 4),
            (3, 4, 5),
            stride=(2, 1, 1),
            output_padding=(1, 0, 0),
            groups=2,
        ),
    ),
)
