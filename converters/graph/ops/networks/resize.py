"""Resized images, and images sampled at a grid."""

from __future__ import annotations

import ast
from typing import Any

from converters.graph.expression import call, code
from converters.graph.ops.parts import demand, known
from converters.graph.ops.registry import Result, op, real, sample, within


def _scales(x: Any, out: Result, factors: Any, rank: int) -> dict[str, Any]:
    """The scale factors that torch uses, if they are given and differ from the ratio of the sizes."""
    if not factors or all(factor is None for factor in factors):
        return {}
    for side, new, factor in zip(x.shape[-rank:], out.shape[-rank:], factors, strict=True):
        old, wanted = getattr(side, "hint", side), getattr(new, "hint", new)
        if factor is not None and (
            (not known(side) and factor != int(factor)) or old * factor != wanted
        ):
            return {"scale": tuple(factors)}
    return {}


def _nearest(x: Any, out: Result, factors: Any, exact: bool, rank: int) -> ast.expr:
    size = tuple(out.shape[-rank:])
    whole = [
        factor
        for factor in factors or ()
        if factor is not None and float(factor).is_integer() and factor >= 1
    ]
    if not whole and all(known(side) for side in (*size, *x.shape[-rank:])):
        ratios = [new / old for new, old in zip(size, x.shape[-rank:], strict=True)]
        whole = [ratio for ratio in ratios if ratio.is_integer() and ratio >= 1]
    if len(whole) == rank:
        resized = code("{x}", x=x)
        for axis, factor in zip(range(-rank, 0), whole, strict=True):
            if factor != 1:
                resized = call("jnp.repeat", resized, int(factor), axis=axis)
        return resized
    named = _scales(x, out, factors, rank) | ({"exact": True} if exact else {})
    return call("resize_nearest", x, size, **named)


def _linear(
    x: Any, out: Result, factors: Any, align: bool, rank: int, kind: str, antialias: bool
) -> ast.expr:
    named = _scales(x, out, factors, rank)
    if align:
        named = {"align_corners": True}
    demand(not (align and antialias), "antialiasing with aligned corners")
    if antialias:
        named["antialias"] = True
    if kind == "cubic":
        named["cubic"] = True
    if not named:
        shape = (*x.shape[:-rank], *out.shape[-rank:])
        return call("jax.image.resize", x, shape, "linear", antialias=False)
    return call("resize_linear", x, tuple(out.shape[-rank:]), **named)


_SHAPES = {1: (2, 3, 5), 2: (2, 3, 5, 4), 3: (1, 2, 5, 4, 3)}


def _vec(rank: int, exact: bool) -> None:
    def write(x: Any, output_size: Any, scale_factors: Any, *, out: Result) -> ast.expr:
        return _nearest(x, out, scale_factors, exact, rank)

    def plain(x: Any, output_size: Any, *scales: Any, out: Result) -> ast.expr:
        return _nearest(x, out, list(scales), exact, rank)

    if rank == 1:

        def one(x: Any, output_size: Any, scales: Any = None, *, out: Result) -> ast.expr:
            return plain(x, output_size, scales, out=out)

        default: Any = one
    elif rank == 2:

        def two(
            x: Any, output_size: Any, scales_h: Any = None, scales_w: Any = None, *, out: Result
        ) -> ast.expr:
            return plain(x, output_size, scales_h, scales_w, out=out)

        default = two
    else:

        def three(
            x: Any,
            output_size: Any,
            scales_d: Any = None,
            scales_h: Any = None,
            scales_w: Any = None,
            *,
            out: Result,
        ) -> ast.expr:
            return plain(x, output_size, scales_d, scales_h, scales_w, out=out)

        default = three
    for function in (write, default):
        function.__doc__ = "The nearest pixel."
    name = f"{'_upsample_nearest_exact' if exact else 'upsample_nearest'}{rank}d"
    x = real(*_SHAPES[rank])
    sizes = ([7, 9, 4][:rank], [3, 2, 2][:rank], [10, 8, 6][:rank])
    cases = (
        *tuple(sample(x, size, None) for size in sizes),
        sample(x, None, [2.0] * rank),
        sample(x, None, [1.5] * rank),
        sample(x, None, [0.7] * rank),
    )
    op(f"aten.{name}.vec", samples=cases)(write)
    op(f"aten.{name}.default", samples=tuple(sample(x, size) for size in sizes))(default)


for _rank in (1, 2, 3):
    for _exact in (False, True):
        _vec(_rank, _exact)


def _smooth(name: str, rank: int, kind: str = "linear", antialias: bool = False) -> None:
    def write(
        x: Any, output_size: Any, align_corners: bool, scale_factors: Any, *, out: Result
    ) -> ast.expr:
        return _linear(x, out, scale_factors, align_corners, rank, kind, antialias)

    def one(
        x: Any, output_size: Any, align_corners: bool, scales: Any = None, *, out: Result
    ) -> ast.expr:
        return _linear(x, out, [scales], align_corners, rank, kind, antialias)

    def two(
        x: Any,
        output_size: Any,
        align_corners: bool,
        scales_h: Any = None,
        scales_w: Any = None,
        *,
        out: Result,
    ) -> ast.expr:
        return _linear(x, out, [scales_h, scales_w], align_corners, rank, kind, antialias)

    def three(
        x: Any,
        output_size: Any,
        align_corners: bool,
        scales_d: Any = None,
        scales_h: Any = None,
        scales_w: Any = None,
        *,
        out: Result,
    ) -> ast.expr:
        return _linear(x, out, [scales_d, scales_h, scales_w], align_corners, rank, kind, antialias)

    default: Any = {1: one, 2: two, 3: three}[rank]
    for function in (write, default):
        function.__doc__ = f"Between pixels, {kind}."
    x = real(*_SHAPES[rank])
    # With antialiasing to a width of 1 all of torch's rows are equal, which differs from its
    # documentation.
    sizes = ([7, 9, 4][:rank], [3, 2, 2][:rank], [10, 3 if antialias else 1, 6][:rank])
    modes = (False,) if antialias else (False, True)
    cases = tuple(sample(x, size, align, None) for size in sizes for align in modes)
    cases += tuple(
        sample(x, None, align, [scale] * rank) for scale in (2.0, 1.5, 0.7) for align in modes
    )
    op(f"aten.{name}.vec", samples=cases)(write)
    op(
        f"aten.{name}.default",
        samples=tuple(sample(x, size, align) for size in sizes for align in modes),
    )(default)


_smooth("upsample_linear1d", 1)
_smooth("upsample_bilinear2d", 2)
_smooth("upsample_trilinear3d", 3)
_smooth("upsample_bicubic2d", 2, "cubic")
_smooth("_upsample_bilinear2d_aa", 2, antialias=True)
_smooth("_upsample_bicubic2d_aa", 2, "cubic", antialias=True)

_MODES = ("bilinear", "nearest", "bicubic")
_RIMS = ("zeros", "border", "reflection")


def _grid(
    x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> ast.expr:
    named: dict[str, Any] = {}
    if interpolation_mode:
        named["mode"] = _MODES[interpolation_mode]
    if padding_mode:
        named["padding"] = _RIMS[padding_mode]
    if align_corners:
        named["align_corners"] = True
    return call("grid_sample", x, grid, **named)


_GRIDS = tuple(
    sample(real(2, 3, 5, 4), within(-1.4, 1.4, 2, 6, 3, 2), mode, rim, align, tolerance=1e-5)
    for mode in (0, 1, 2)
    for rim in (0, 1, 2)
    for align in (False, True)
)
_SOLIDS = tuple(
    sample(real(2, 3, 5, 4, 3), within(-1.4, 1.4, 2, 6, 3, 2, 3), mode, rim, True, tolerance=1e-5)
    for mode in (0, 1)
    for rim in (0, 1, 2)
)


@op("aten.grid_sampler_2d.default", samples=_GRIDS)
def grid_sampler_2d(
    x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> ast.expr:
    """Pixels sampled at a grid."""
    return _grid(x, grid, interpolation_mode, padding_mode, align_corners)


@op("aten.grid_sampler_3d.default", samples=_SOLIDS)
def grid_sampler_3d(
    x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> ast.expr:
    """Pixels sampled at a grid."""
    return _grid(x, grid, interpolation_mode, padding_mode, align_corners)


@op("aten.grid_sampler.default", samples=(_GRIDS[0], _GRIDS[3], _SOLIDS[0]))
def grid_sampler(
    x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> ast.expr:
    """Pixels sampled at a grid."""
    return _grid(x, grid, interpolation_mode, padding_mode, align_corners)


@op(
    "aten.affine_grid_generator.default",
    samples=(
        sample(real(2, 2, 3), [2, 3, 4, 5], False),
        sample(real(2, 2, 3), [2, 3, 4, 5], True),
        sample(real(2, 3, 4), [2, 3, 4, 5, 2], False),
    ),
)
def affine_grid(theta: Any, size: Any, align_corners: bool) -> ast.expr:
    """The grid of an affine map."""
    return call("affine_grid", theta, tuple(size), bool(align_corners))
