"""Pooling, channels second as in torch."""

from __future__ import annotations

import ast
from typing import Any

from converters.graph.expression import call, code, method
from converters.graph.ops.parts import demand, known, listed
from converters.graph.ops.registry import distinct, op, real, sample

_SIZES = (2, 3, 7, 6, 5)


def _window(
    rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[list[Any], dict[str, Any]]:
    kernel = tuple(listed(kernel, rank))
    named: dict[str, Any] = {}
    for name, value, default in (("padding", padding, 0), ("dilation", dilation, 1)):
        if any(setting != default for setting in listed(value, rank)):
            named[name] = tuple(listed(value, rank))
    if ceil_mode:
        named["ceil_mode"] = True
    return [kernel, tuple(listed(stride, rank)) or kernel], named


def _max_pool(rank: int) -> None:
    def write(
        x: Any,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> ast.expr:
        places, named = _window(rank, kernel_size, stride, padding, dilation, ceil_mode)
        return call("max_pool", x, *places, **named)

    def with_indices(
        x: Any,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> ast.expr:
        places, named = _window(rank, kernel_size, stride, padding, dilation, ceil_mode)
        return code(
            "({a}, {b})",
            a=call("max_pool", x, *places, **named),
            b=call("max_pool_places", x, *places, **named),
        )

    write.__doc__ = "The largest of each window."
    with_indices.__doc__ = "The largest of each window, and where in the image it was."
    x = distinct(*_SIZES[: rank + 2])
    cases = (
        sample(x, [2] * rank),
        sample(x, [3] * rank, [2] * rank, [1] * rank),
        sample(x, [2] * rank, [2] * rank, [0] * rank, [1] * rank, True),
        sample(
            x, [2] * rank, [1] * rank, [0] * rank, [2] * rank, gradient=False, why="JAX has none"
        ),
        sample(x, [3] * rank, [2] * rank, [1] * rank, [1] * rank, True),
        sample(distinct(*_SIZES[1 : rank + 2]), [2] * rank),
    )
    op(f"aten.max_pool{rank}d.default", samples=cases)(write)
    name = "max_pool1d_with_indices" if rank == 1 else f"max_pool{rank}d_with_indices"
    op(f"aten.{name}.default", samples=cases)(with_indices)


def _avg_pool(rank: int) -> None:
    def pooled(
        x: Any,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: Any,
    ) -> ast.expr:
        demand(x.dtype.is_floating_point, "the mean of integers, cut off")
        places, named = _window(rank, kernel_size, stride, padding, 1, ceil_mode)
        if not count_include_pad:
            named["count_padding"] = False
        if divisor is not None:
            named["divisor"] = divisor
        return call("avg_pool", x, *places, **named)

    def one(
        x: Any,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> ast.expr:
        return pooled(x, kernel_size, stride, padding, ceil_mode, count_include_pad, None)

    def more(
        x: Any,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> ast.expr:
        return pooled(
            x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )

    one.__doc__ = more.__doc__ = "The mean of each window."
    x = real(*_SIZES[: rank + 2])
    cases = [
        sample(x, [2] * rank),
        sample(x, [3] * rank, [2] * rank, [1] * rank),
        sample(x, [3] * rank, [2] * rank, [1] * rank, False, False),
        sample(x, [2] * rank, [2] * rank, [0] * rank, True),
        sample(x, [3] * rank, [2] * rank, [1] * rank, True, True),
        sample(x, [3] * rank, [2] * rank, [1] * rank, True, False),
        sample(real(*_SIZES[1 : rank + 2]), [2] * rank),
    ]
    if rank > 1:
        cases.append(sample(x, [2] * rank, [2] * rank, [0] * rank, True, True, 3))
    op(f"aten.avg_pool{rank}d.default", samples=tuple(cases))(one if rank == 1 else more)


def _adaptive(rank: int) -> None:
    axes = tuple(range(-rank, 0))

    def mean(x: Any, output_size: Any) -> ast.expr:
        if all(known(side) and side == 1 for side in output_size):
            return method(x, "mean", axis=axes if rank > 1 else -1, keepdims=True)
        return call("adaptive_avg_pool", x, tuple(output_size))

    def largest(x: Any, output_size: Any) -> ast.expr:
        values = call("adaptive_max_pool", x, tuple(output_size))
        return code("({a}, {b})", a=values, b=call("adaptive_max_places", x, tuple(output_size)))

    mean.__doc__ = "The means of as many windows as are wanted."
    largest.__doc__ = "The largest of as many windows as are wanted, and where they were."
    shape = _SIZES[: rank + 2]
    cases = tuple(
        sample(distinct(*shape), size) for size in ([1] * rank, [3] * rank, [7, 2, 5][:rank])
    )
    op(f"aten.adaptive_avg_pool{rank}d.default", samples=cases)(mean)
    op(f"aten.adaptive_max_pool{rank}d.default", samples=cases)(largest)
    if rank > 1:
        op(f"aten._adaptive_avg_pool{rank}d.default", samples=cases)(mean)


for _rank in (1, 2, 3):
    _max_pool(_rank)
    _avg_pool(_rank)
    _adaptive(_rank)
