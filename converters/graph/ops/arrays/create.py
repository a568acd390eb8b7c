"""Tensors made from numbers alone: zeros, ranges, the unit matrix."""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import call, code
from converters.graph.ops.parts import demand, known
from converters.graph.ops.registry import Result, Size, integers, op, real, sample

_INDEX = torch.int64


def _full(out: Result, value: Any, size: Any = None) -> ast.expr:
    """A tensor of one value.

    Args:
        out: the result.
        value: the value of each element.
        size: the size in the original; a side that is no input's may be a setting there.
    """
    shape = tuple(out.shape)
    if size is not None:
        asked = zip(size, shape, strict=True)
        shape = tuple(asked_side if isinstance(side, int) else side for asked_side, side in asked)
    if known(value) and value in (0, 1) and not isinstance(value, bool):
        return call("jnp.ones" if value else "jnp.zeros", shape, out.dtype)
    if isinstance(value, bool) and out.dtype == torch.bool:
        return call("jnp.ones" if value else "jnp.zeros", shape, out.dtype)
    return call("jnp.full", shape, value, out.dtype)


@op(
    "aten.zeros.default",
    "aten.new_zeros.default",
    samples=(
        sample([2, 3]),
        sample([2, 3], dtype=_INDEX),
        sample([], dtype=torch.bool),
        sample(real(2), [2, 3]),
        sample(real(2), [3], dtype=_INDEX),
    ),
)
def zeros(*size: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """`jnp.zeros`."""
    return _full(out, 0, size[-1])


@op(
    "aten.ones.default",
    "aten.new_ones.default",
    samples=(
        sample([2, 3]),
        sample([2, 3], dtype=_INDEX),
        sample([], dtype=torch.bool),
        sample(real(2), [2, 3]),
        sample(integers(2), [3]),
    ),
)
def ones(*size: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """`jnp.ones`."""
    return _full(out, 1, size[-1])


_NOTHING = "torch does not say what is in it"


@op(
    "aten.empty.memory_format",
    "aten.new_empty.default",
    samples=(
        sample([2, 3], values=False, why=_NOTHING),
        sample(real(2), [2, 3], values=False, gradient=False, why=_NOTHING),
    ),
)
def empty(*size: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """`jnp.zeros`: torch leaves the values undefined."""
    return _full(out, 0, size[-1])


@op(
    "aten.empty_permuted.default",
    "aten.empty_strided.default",
    samples=(sample([2, 3], [0, 1], values=False, why=_NOTHING),),
)
def empty_permuted(
    size: Any, physical_layout: Any, out: Result, dtype: torch.dtype | None = None
) -> ast.expr:
    """`jnp.zeros`: torch leaves the values undefined."""
    return _full(out, 0, size)


@op(
    "aten.new_empty_strided.default",
    samples=(sample(real(2), [2, 3], [3, 1], values=False, gradient=False, why=_NOTHING),),
)
def new_empty_strided(
    x: Any, size: Any, stride: Any, out: Result, dtype: torch.dtype | None = None
) -> ast.expr:
    """`jnp.zeros`: torch leaves the values undefined."""
    return _full(out, 0, size)


def _like(name: str, *names: str, function: str, dtyped: bool = True, **options: Any) -> None:
    def write(x: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
        return call(function, x) if x.dtype == out.dtype else call(function, x, dtype=out.dtype)

    write.__doc__ = f"`{function}`."
    another = sample(integers(2), **({"dtype": torch.float32} if dtyped else {}), **options)
    cases = (sample(real(2, 3), **options), another)
    op(name, *names, samples=cases)(write)


_like("aten.zeros_like.default", function="jnp.zeros_like")
_like("aten.zero.default", function="jnp.zeros_like", dtyped=False)
_like("aten.ones_like.default", function="jnp.ones_like")
_like(
    "aten.empty_like.default", function="jnp.zeros_like", values=False, gradient=False, why=_NOTHING
)


@op(
    "aten.full.default",
    samples=(
        sample([2, 3], 1.5),
        sample([2], 7),
        sample([2], True),
        sample([], -torch.inf),
        sample([2], 0, dtype=torch.float32),
        sample([2], 1, dtype=torch.bool),
    ),
)
def full(size: Any, fill_value: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """`jnp.full`."""
    if out.dtype == torch.bool and isinstance(fill_value, int):
        fill_value = bool(fill_value)
    return _full(out, fill_value, size)


@op(
    "aten.new_full.default",
    samples=(
        sample(real(2), [2, 3], 1.5),
        sample(integers(2), [3], 2),
        sample(real(2), [3], 2, dtype=_INDEX),
    ),
)
def new_full(
    x: Any, size: Any, fill_value: Any, out: Result, dtype: torch.dtype | None = None
) -> ast.expr:
    """`jnp.full`."""
    return _full(out, fill_value, size)


@op(
    "aten.full_like.default",
    samples=(
        sample(real(2, 3), 1.5),
        sample(integers(2), 2),
        sample(real(2), True, dtype=torch.bool),
        sample(integers(2), 0.0, dtype=torch.float32),
    ),
)
def full_like(x: Any, fill_value: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """`jnp.full_like`."""
    named = {} if x.dtype == out.dtype else {"dtype": out.dtype}
    return call("jnp.full_like", x, fill_value, **named)


@op(
    "aten.scalar_tensor.default",
    samples=(
        sample(1.5),
        sample(2, dtype=_INDEX),
        sample(-torch.inf, dtype=torch.bfloat16),
        sample(True, dtype=torch.bool),
    ),
)
def scalar_tensor(s: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """A number as a tensor without axes."""
    return call("jnp.asarray", s, out.dtype)


@op(
    "aten.arange.default",
    samples=(sample(5), sample(5, dtype=torch.float32), sample(4.5), sample(0)),
)
def arange(end: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """`jnp.arange`."""
    return _range((end,), out)


@op(
    "aten.arange.start",
    samples=(sample(2, 5), sample(-2, 5, dtype=torch.float32), sample(0, 5), sample(0.5, 4)),
)
def arange_from(start: Any, end: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """`jnp.arange`."""
    return _range((end,) if start == 0 and known(start) else (start, end), out)


@op(
    "aten.arange.start_step",
    samples=(
        sample(0, 9, 2),
        sample(0, 5),
        sample(5, 0, -1),
        sample(0, 8, 2, dtype=torch.float32),
        sample(0.0, 1.0, 0.25),
        sample(2, 8, 1),
        sample(1, 2, 0.1),
        sample(4, -4, -1.0, dtype=torch.int64),
    ),
)
def arange_by(
    start: Any, end: Any, step: Any = 1, *, out: Result, dtype: torch.dtype | None = None
) -> ast.expr:
    """`jnp.arange`."""
    if step == 1:
        return arange_from(start, end, out)
    return _range((start, end, step), out)


def _range(bounds: tuple[Any, ...], out: Result) -> ast.expr:
    bounds = tuple(
        int(bound) if isinstance(bound, float) and bound.is_integer() else bound for bound in bounds
    )
    whole = all(isinstance(bound, int | Size) for bound in bounds)
    if whole and out.dtype == torch.int64:
        return call("jnp.arange", *bounds)
    if not whole and not out.dtype.is_floating_point:
        demand(False, "a range of integers between bounds with fractions")
    return call("jnp.arange", *bounds, dtype=out.dtype)


@op(
    "aten.linspace.default",
    samples=(
        sample(0.0, 1.0, 5),
        sample(-1, 1, 4),
        sample(2, 3, 1),
        sample(0.0, 1.0, 0),
        sample(-1.0, 1.0, 6, dtype=torch.float64),
    ),
)
def linspace(
    start: Any, end: Any, steps: Any, out: Result, dtype: torch.dtype | None = None
) -> ast.expr:
    """`jnp.linspace`."""
    demand(out.dtype.is_floating_point, "linspace of integers rounds differently")
    return call("jnp.linspace", start, end, steps, dtype=out.dtype)


@op("aten.logspace.default", samples=(sample(0.0, 1.0, 5, tolerance=5e-6), sample(-1, 1, 4, 2.0)))
def logspace(
    start: Any,
    end: Any,
    steps: Any,
    base: float = 10.0,
    *,
    out: Result,
    dtype: torch.dtype | None = None,
) -> ast.expr:
    """`jnp.logspace`."""
    demand(out.dtype.is_floating_point, "logspace of integers rounds differently")
    return call("jnp.logspace", start, end, steps, base=base, dtype=out.dtype)


@op("aten.eye.default", samples=(sample(3), sample(3, dtype=torch.bool), sample(3, dtype=_INDEX)))
def eye(n: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """`jnp.eye`."""
    return call("jnp.eye", n, dtype=out.dtype)


@op("aten.eye.m", samples=(sample(3, 4), sample(3, 2, dtype=torch.bool)))
def eye_m(n: Any, m: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """`jnp.eye`."""
    return call("jnp.eye", n, m, dtype=out.dtype)


def _triangle(name: str) -> None:
    def write(x: Any, diagonal: Any = 0) -> ast.expr:
        return call(f"jnp.{name}", x) if diagonal == 0 else call(f"jnp.{name}", x, diagonal)

    write.__doc__ = f"`jnp.{name}`."
    cases = (
        sample(real(3, 4)),
        sample(real(2, 3, 3), 1),
        sample(real(3, 3), -1),
        sample(integers(3, 3)),
    )
    op(f"aten.{name}.default", samples=cases)(write)


_triangle("tril")
_triangle("triu")


def _triangle_indices(name: str) -> None:
    def write(row: Any, col: Any, offset: Any = 0, *, dtype: torch.dtype | None = None) -> ast.expr:
        return code(f"jnp.stack(jnp.{name}({{n}}, {{k}}, {{m}}))", n=row, k=offset, m=col)

    write.__doc__ = f"`jnp.{name}`."
    op(f"aten.{name}.default", samples=(sample(3, 3), sample(3, 4, 1)))(write)


_triangle_indices("tril_indices")
_triangle_indices("triu_indices")


@op(
    "aten.one_hot.default",
    samples=(sample(integers(2, 3, high=4), 4), sample(integers(5, high=4), 6)),
)
def one_hot(x: Any, num_classes: Any = -1) -> ast.expr:
    """`jax.nn.one_hot`. An index out of range gives zeros, where torch raises."""
    demand(not known(num_classes) or num_classes > 0, "one_hot without the number of classes")
    return call("jax.nn.one_hot", x, num_classes, dtype=torch.int64)


@op(
    "aten.meshgrid.indexing",
    samples=(
        sample([real(2), real(3)], indexing="ij"),
        sample([real(2), real(3)], indexing="xy"),
        sample([integers(2), integers(3), integers(4)], indexing="ij"),
    ),
)
def meshgrid(tensors: Any, indexing: str) -> ast.expr:
    """`jnp.meshgrid`, whose default is "xy"."""
    return code("jnp.meshgrid({*tensors}, indexing={indexing})", tensors=tensors, indexing=indexing)


@op("aten.meshgrid.default", samples=(sample([real(2), real(3)]), sample([integers(2)])))
def meshgrid_of_rows(tensors: Any) -> ast.expr:
    """`torch.meshgrid` without an order: "ij"."""
    return meshgrid(tensors, "ij")


@op("aten.cartesian_prod.default", samples=(sample([real(2), real(3)]), sample([real(3)])))
def cartesian_prod(tensors: Any) -> ast.expr:
    """Every combination of the elements."""
    if len(tensors) == 1:
        return code("{x}", x=tensors[0])
    return code(
        "jnp.stack(jnp.meshgrid({*tensors}, indexing='ij'), axis=-1).reshape(-1, {n})",
        tensors=tensors,
        n=len(tensors),
    )


@op(
    "aten.vander.default",
    samples=(
        sample(real(3), gradient=False, why="torch has none"),
        sample(real(3), 2, True, gradient=False, why="torch has none"),
    ),
)
def vander(x: Any, N: Any = None, increasing: bool = False) -> ast.expr:  # noqa: N803
    """`jnp.vander`."""
    return call("jnp.vander", x, N, increasing)


def _window(name: str, function: str) -> None:
    def write(
        window_length: Any, periodic: bool = True, *, dtype: torch.dtype | None = None
    ) -> ast.expr:
        if dtype is not None:
            demand(dtype in (torch.float32, torch.float64), "a window of few bits")
        if periodic:
            return code(
                f"{function}({{n}})[:-1]",
                n=code("{n} + 1", n=window_length)
                if not known(window_length)
                else window_length + 1,
            )
        return call(function, window_length)

    write.__doc__ = f"`{function}`."
    op(f"aten.{name}.periodic", samples=(sample(6, True), sample(5, False)))(write)
    op(f"aten.{name}.default", samples=(sample(6),))(write)


_window("hann_window", "jnp.hanning")
_window("hamming_window", "jnp.hamming")
_window("blackman_window", "jnp.blackman")
_window("bartlett_window", "jnp.bartlett")
