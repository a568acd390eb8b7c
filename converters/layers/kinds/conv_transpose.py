"""ConvTranspose1d, 2d, 3d: (I, O/groups, *k) → (*k, I/groups, O), flipped along space.

This is the kernel of Flax's `ConvTranspose` with its default `transpose_kernel=False`. Flax's padding is
that of the convolution which it runs: for each axis `lo = dilation * (k - 1) - padding` and
`hi = lo + output_padding` of torch's. Flax has no groups here; `converters.modules`' ConvTranspose has them,
and takes torch's own padding and output_padding.
"""

from typing import Any

from converters.layers.entry import ForwardCase, LayerEntry, Weight, Weights, ours
from converters.layers.layout import Flip, Merge, Permute, Split, chain


def _weights(layer: Any) -> Weights:
    rank, groups = len(layer.kernel_size), layer.groups
    space = tuple(range(rank))
    if groups == 1:
        layout = chain([Permute((*range(2, rank + 2), 0, 1)), Flip(space)])
    else:
        # (g, I/g, O/g, *k) → (*k, I/g, g, O/g): each group's outputs lie side by side.
        apart = Split(0, (groups, layer.in_channels // groups))
        moved = Permute((*range(3, rank + 3), 1, 0, 2))
        joined = Merge(rank + 1, (groups, layer.out_channels // groups))
        layout = chain([apart, moved, joined, Flip(space)])
    return (Weight("weight", "kernel", "kernel", layout), Weight("bias", "bias", "bias"))


def _pads(layer: Any) -> list[tuple[int, int]]:
    """Flax's padding for torch's arguments."""
    sides = zip(layer.kernel_size, layer.dilation, layer.padding, layer.output_padding, strict=True)
    return [(d * (k - 1) - p, d * (k - 1) - p + more) for k, d, p, more in sides]


def _note(layer: Any) -> str:
    told = f"strides={tuple(layer.stride)}, kernel_dilation={tuple(layer.dilation)}"
    if layer.groups > 1:
        return (
            f"Flax has no groups here; converters.modules: ConvTranspose(…, {told}, "
            f"padding={tuple(layer.padding)}, output_padding={tuple(layer.output_padding)}, "
            f"groups={layer.groups})"
        )
    return f"{told}, padding={_pads(layer)}"


def _case(
    name: str,
    channels: tuple[int, int],
    kernel: tuple[int, ...],
    sides: tuple[int, ...],
    *,
    stride: tuple[int, ...] | None = None,
    padding: tuple[int, ...] | None = None,
    more: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
    bias: bool = True,
    flax: bool = False,
) -> ForwardCase:
    """One configuration; with `flax` its counterpart is Flax's own layer, else ours."""
    inputs, outputs = channels
    rank = len(kernel)
    stride, dilation = stride or (1,) * rank, dilation or (1,) * rank
    padding, more = padding or (0,) * rank, more or (0,) * rank

    def make(nn: Any) -> Any:
        return getattr(nn, f"ConvTranspose{rank}d")(
            inputs,
            outputs,
            kernel,
            stride=stride,
            padding=padding,
            output_padding=more,
            groups=groups,
            bias=bias,
            dilation=dilation,
        )

    def arguments() -> dict[str, Any]:
        common = {"strides": stride, "kernel_dilation": dilation, "use_bias": bias}
        if not flax:
            return common | {"padding": padding, "output_padding": more, "groups": groups}
        reach = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
        pads = [(low, low + extra) for low, extra in zip(reach, more, strict=True)]
        return common | {"padding": pads}

    def linen(nn: Any) -> Any:
        return (nn if flax else ours("linen")).ConvTranspose(outputs, kernel, **arguments())

    def nnx(api: Any, rngs: Any) -> Any:
        where = api if flax else ours("nnx")
        return where.ConvTranspose(inputs, outputs, kernel, rngs=rngs, **arguments())

    return ForwardCase(name, make, linen, nnx, (2, inputs, *sides), channels_last=True)


def _entry(rank: int, *cases: ForwardCase) -> LayerEntry:
    return LayerEntry(f"ConvTranspose{rank}d", __doc__ or "", _weights, cases, note=_note)


ENTRIES = (
    _entry(
        1,
        _case("Flax's own", (5, 4), (3,), (7,), stride=(2,), padding=(1,), more=(1,), flax=True),
        _case("groups", (6, 8), (3,), (7,), stride=(2,), padding=(1,), more=(1,), groups=2),
    ),
    _entry(
        2,
        _case("Flax's own", (6, 4), (3, 5), (8, 7), flax=True),
        _case(
            "Flax's own, strided, padded, dilated",
            (6, 4),
            (3, 5),
            (8, 7),
            stride=(2, 3),
            padding=(1, 2),
            more=(1, 2),
            dilation=(2, 1),
            flax=True,
        ),
        _case(
            "groups, strided, padded, dilated",
            (6, 9),
            (2, 5),
            (8, 7),
            stride=(2, 3),
            padding=(1, 2),
            more=(1, 2),
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
            more=(0, 1, 2),
            flax=True,
        ),
        _case("groups", (6, 10), (2, 3, 4), (3, 4, 5), stride=(2, 1, 1), more=(1, 0, 0), groups=2),
    ),
)
