"""Convolutions, channels second as in torch."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from converters.graph.expression import call, code
from converters.graph.ops.parts import demand, known, listed
from converters.graph.ops.registry import op, real, sample


def _numbers(rank: int) -> tuple[str, str, str]:
    axes = "DHW"[-rank:] if rank > 1 else "W"
    return f"NC{axes}", f"OI{axes}", f"NC{axes}"


def _convolved(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> ast.expr:
    rank = weight.ndim - 2
    alone = x.ndim == rank + 1
    named: dict[str, Any] = {"dimension_numbers": _numbers(rank)}
    if any(step != 1 for step in dilation):
        named["rhs_dilation"] = tuple(dilation)
    if not known(groups) or groups != 1:
        named["feature_group_count"] = groups
    batched = code("{x}[None]", x=x) if alone else x
    convolved = call(
        "jax.lax.conv_general_dilated", batched, weight, tuple(stride), padding, **named
    )
    return _finished(convolved, bias, rank, alone)


def _finished(output: ast.expr, bias: Any, rank: int, alone: bool) -> ast.expr:
    if alone:
        output = code("{made}[0]", made=output)
    if bias is None:
        return output
    places = [ast.Slice(), *[ast.Constant(None)] * rank]
    return code("{made} + {bias}[{*places}]", made=output, bias=bias, places=places)


def _convolution(rank: int) -> None:
    def write(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = (1,) * rank,
        padding: Any = (0,) * rank,
        dilation: Any = (1,) * rank,
        groups: Any = 1,
    ) -> ast.expr:
        pads = [(width, width) for width in listed(padding, rank)]
        return _convolved(
            x, weight, bias, listed(stride, rank), pads, listed(dilation, rank), groups
        )

    def by_word(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = (1,) * rank,
        padding: str = "valid",
        dilation: Any = (1,) * rank,
        groups: Any = 1,
    ) -> ast.expr:
        steps = listed(dilation, rank)
        pads: Any = "VALID"
        if padding == "same":
            total = [
                step * (_number(side) - 1)
                for step, side in zip(steps, weight.shape[2:], strict=True)
            ]
            pads = [(width // 2, width - width // 2) for width in total]
        return _convolved(x, weight, bias, listed(stride, rank), pads, steps, groups)

    def back(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = (1,) * rank,
        padding: Any = (0,) * rank,
        output_padding: Any = (0,) * rank,
        groups: Any = 1,
        dilation: Any = (1,) * rank,
    ) -> ast.expr:
        return _transposed(x, weight, bias, stride, padding, output_padding, groups, dilation)

    write.__doc__ = by_word.__doc__ = "`jax.lax.conv_general_dilated`."
    back.__doc__ = "The convolution with its input spread by the stride."
    x = (2, 4, 7, 6, 5)[: rank + 2]
    w = (6, 4, 3, 2, 3)[: rank + 2]
    grouped = (6, 2, 3, 2, 3)[: rank + 2]
    ones, twos = [1] * rank, [2] * rank
    op(
        f"aten.conv{rank}d.default",
        samples=(
            sample(real(*x), real(*w), real(6)),
            sample(real(*x), real(*w), None, twos, ones),
            sample(real(*x), real(*grouped), real(6), ones, [1, 0, 2][:rank], [2, 1, 1][:rank], 2),
            sample(real(*x[1:]), real(*w), real(6)),
        ),
    )(write)
    op(
        f"aten.conv{rank}d.padding",
        samples=(
            sample(real(*x), real(*w), real(6)),
            sample(real(*x), real(*w), None, ones, "same"),
            sample(real(*x), real(*grouped), None, ones, "same", twos, 2),
        ),
    )(by_word)
    turned = (4, 3, 3, 2, 3)[: rank + 2]
    op(
        f"aten.conv_transpose{rank}d.{'default' if rank == 1 else 'input'}",
        samples=(
            sample(real(*x), real(*turned), real(3)),
            sample(real(*x), real(*turned), None, twos, ones, ones),
            sample(real(*x), real(*turned), real(6), [3] * rank, [0] * rank, [1] * rank, 2, ones),
            sample(real(*x[1:]), real(*turned), real(3), twos, ones, [0] * rank, 1, twos),
        ),
    )(back)


def _number(side: Any) -> int:
    demand(known(side), "a kernel of unknown size")
    return int(side)


def _transposed(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: Any,
    dilation: Any,
) -> ast.expr:
    rank = weight.ndim - 2
    alone = x.ndim == rank + 1
    named: dict[str, Any] = {}
    for name, value, default in (
        ("padding", padding, 0),
        ("output_padding", output_padding, 0),
        ("dilation", dilation, 1),
    ):
        many: Sequence[Any] = listed(value, rank)
        if any(setting != default for setting in many):
            named[name] = tuple(many)
    if not known(groups) or groups != 1:
        named["groups"] = groups
    batched = code("{x}[None]", x=x) if alone else x
    convolved = call("conv_transpose", batched, weight, tuple(listed(stride, rank)), **named)
    return _finished(convolved, bias, rank, alone)


for _rank in (1, 2, 3):
    _convolution(_rank)


@op(
    "aten.convolution.default",
    samples=(
        sample(real(2, 4, 7), real(6, 2, 3), real(6), [2], [1], [1], False, [0], 2),
        sample(real(2, 4, 7, 6), real(4, 3, 3, 2), None, [2, 1], [1, 0], [1, 1], True, [1, 0], 1),
    ),
)
def convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
) -> ast.expr:
    """`jax.lax.conv_general_dilated`, or its transpose."""
    if transposed:
        return _transposed(x, weight, bias, stride, padding, output_padding, groups, dilation)
    rank = weight.ndim - 2
    pads = [(width, width) for width in listed(padding, rank)]
    return _convolved(x, weight, bias, listed(stride, rank), pads, listed(dilation, rank), groups)


@op("aten.conv_tbc.default", samples=(sample(real(7, 2, 4), real(3, 4, 5), real(5), 1),))
def conv_tbc(x: Any, weight: Any, bias: Any, pad: int = 0) -> ast.expr:
    """A convolution of (length, batch, channels)."""
    return code(
        "jax.lax.conv_general_dilated({x}, {w}, (1,), [({pad}, {pad})],"
        " dimension_numbers=('WNC', 'WIO', 'WNC')) + {bias}",
        x=x,
        w=weight,
        pad=pad,
        bias=bias,
    )


@op(
    "aten.im2col.default",
    samples=(
        sample(real(2, 3, 5, 6), [2, 3], [1, 1], [0, 0], [1, 2]),
        sample(real(2, 3, 5, 6), [3, 2], [1, 2], [1, 1], [2, 1]),
    ),
)
def im2col(x: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> ast.expr:
    """The patches under a kernel, side by side (`torch.nn.functional.unfold`)."""
    columns = call(
        "patches", _batched(x), tuple(kernel_size), tuple(stride), tuple(padding), tuple(dilation)
    )
    return code("{made}[0]", made=columns) if x.ndim == 3 else columns


@op(
    "aten.col2im.default",
    samples=(
        sample(real(2, 18, 8), [5, 5], [2, 3], [1, 1], [0, 0], [1, 2]),
        sample(real(2, 12, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]),
        sample(real(2, 12, 9), [4, 4], [2, 2], [1, 1], [1, 1], [2, 2]),
    ),
)
def col2im(
    x: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> ast.expr:
    """Patches added up to their image (`torch.nn.functional.fold`)."""
    batched = code("{x}[None]", x=x) if x.ndim == 2 else x
    images = call(
        "from_patches",
        batched,
        tuple(output_size),
        tuple(kernel_size),
        tuple(stride),
        tuple(padding),
        tuple(dilation),
    )
    return code("{made}[0]", made=images) if x.ndim == 2 else images


def _batched(x: Any) -> Any:
    return code("{x}[None]", x=x) if x.ndim == 3 else x
