"""Linear algebra, and Fourier transforms."""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import call, code
from converters.graph.ops.parts import axis_name, axis_of, demand
from converters.graph.ops.registry import Result, Sample, op, real, sample, within

_COMPLEX = torch.complex64


def _spd(*shape: int) -> Any:
    """Symmetric matrices with distinct positive eigenvalues."""

    def make(generator: torch.Generator) -> torch.Tensor:
        x = torch.randn(shape, generator=generator)
        return x @ x.mT + torch.diag(torch.arange(1.0, shape[-1] + 1))

    return make


def _one(name: str, function: str, *samples: Sample) -> None:
    def write(x: Any) -> ast.expr:
        return call(function, x)

    write.__doc__ = f"`{function}`."
    op(f"aten.{name}.default", samples=samples)(write)


_one(
    "inverse",
    "jnp.linalg.inv",
    sample(_spd(3, 3), tolerance=1e-5),
    sample(_spd(2, 3, 3), tolerance=1e-5),
)
_one("linalg_inv", "jnp.linalg.inv", sample(_spd(3, 3), tolerance=1e-5))
_one("det", "jnp.linalg.det", sample(_spd(3, 3), tolerance=1e-5))
_one("linalg_det", "jnp.linalg.det", sample(_spd(2, 3, 3), tolerance=1e-5))
_one("logdet", "log_determinant", sample(_spd(3, 3), tolerance=1e-5))
_one("linalg_slogdet", "jnp.linalg.slogdet", sample(_spd(3, 3), tolerance=1e-5))
_one("linalg_matrix_exp", "matrix_exponential", sample(within(-0.5, 0.5, 3, 3), tolerance=1e-5))
_one("matrix_exp", "matrix_exponential", sample(within(-0.5, 0.5, 3, 3), tolerance=1e-5))


@op(
    "aten.linalg_cholesky.default",
    "aten.cholesky.default",
    samples=(sample(_spd(3, 3), tolerance=1e-5), sample(_spd(3, 3), False, tolerance=1e-5)),
)
def cholesky(x: Any, upper: bool = False) -> ast.expr:
    """`jnp.linalg.cholesky`."""
    factor = call("jnp.linalg.cholesky", x)
    return code("{made}.mT" if upper else "{made}", made=factor)


@op(
    "aten.linalg_solve.default",
    samples=(
        sample(_spd(3, 3), real(3, 2), tolerance=1e-5),
        sample(_spd(3, 3), real(3), tolerance=1e-5),
    ),
)
def solve(x: Any, other: Any, *, left: bool = True) -> ast.expr:
    """`jnp.linalg.solve`."""
    demand(left, "a solution from the right")
    return call("jnp.linalg.solve", x, other)


@op(
    "aten.linalg_solve_triangular.default",
    samples=(
        sample(
            _spd(3, 3),
            real(3, 2),
            upper=True,
            tolerance=1e-5,
            gradient=False,
            why="of the other triangle torch gives none",
        ),
        sample(
            _spd(3, 3),
            real(3, 2),
            upper=False,
            unitriangular=True,
            tolerance=1e-5,
            gradient=False,
            why="as above",
        ),
    ),
)
def solve_triangular(
    x: Any, other: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> ast.expr:
    """`jax.scipy.linalg.solve_triangular`."""
    demand(left, "a solution from the right")
    return call(
        "jax.scipy.linalg.solve_triangular",
        x,
        other,
        lower=not upper,
        **({"unit_diagonal": True} if unitriangular else {}),
    )


@op(
    "aten.linalg_pinv.atol_rtol_float",
    samples=(
        sample(real(4, 3), tolerance=1e-5, gradient=False, why="torch differentiates its parts"),
    ),
)
def pinv(x: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> ast.expr:
    """`jnp.linalg.pinv`."""
    demand(atol is None and not hermitian, "pinv with a limit of its own")
    return call("jnp.linalg.pinv", x, **({} if rtol is None else {"rtol": rtol}))


@op(
    "aten.linalg_matrix_power.default",
    "aten.matrix_power.default",
    samples=(
        sample(within(-1, 1, 3, 3), 3),
        sample(_spd(3, 3), -1, tolerance=1e-5),
        sample(real(3, 3), 0),
    ),
)
def matrix_power(x: Any, n: int) -> ast.expr:
    """`jnp.linalg.matrix_power`."""
    return call("jnp.linalg.matrix_power", x, int(n))


@op(
    "aten.linalg_householder_product.default",
    "aten.orgqr.default",
    samples=(
        sample(real(4, 3), real(3), tolerance=1e-5),
        sample(real(2, 4, 3), real(2, 2), tolerance=1e-5),
        sample(real(3, 3), lambda generator: torch.zeros(3), tolerance=1e-5),
    ),
)
def householder_product(x: Any, tau: Any) -> ast.expr:
    """The columns of a product of reflections."""
    demand(not x.dtype.is_complex, "reflections of complex vectors")
    return call("householder_product", x, tau)


_SIGNS = "vectors are the same up to their signs"


@op(
    "aten._linalg_eigh.default",
    "aten.linalg_eigh.default",
    samples=(sample(_spd(3, 3), values=False, gradient=False, why=_SIGNS),),
)
def eigh(x: Any, UPLO: str = "L", compute_v: bool = True) -> ast.expr:  # noqa: N803
    """`jnp.linalg.eigh`: each vector up to its sign."""
    return call("jnp.linalg.eigh", x, UPLO=UPLO)


@op("aten.linalg_eigvalsh.default", samples=(sample(_spd(3, 3), tolerance=1e-5),))
def eigvalsh(x: Any, UPLO: str = "L") -> ast.expr:  # noqa: N803
    """`jnp.linalg.eigvalsh`."""
    return call("jnp.linalg.eigvalsh", x, UPLO=UPLO)


def _singular(x: Any, full_matrices: bool) -> ast.expr:
    return call("jnp.linalg.svd", x, full_matrices=full_matrices)


_TALL = tuple(
    sample(real(4, 3), full, values=False, gradient=False, why=_SIGNS) for full in (False, True)
)


@op("aten.linalg_svd.default", samples=_TALL)
def svd(x: Any, full_matrices: bool = True, *, driver: Any = None) -> ast.expr:
    """`jnp.linalg.svd`: each pair of vectors up to its sign."""
    return _singular(x, full_matrices)


@op("aten._linalg_svd.default", samples=_TALL)
def svd_core(
    x: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None
) -> ast.expr:
    """`jnp.linalg.svd`: each pair of vectors up to its sign."""
    demand(compute_uv, "singular values without vectors, in three results")
    return _singular(x, full_matrices)


@op("aten.linalg_svdvals.default", samples=(sample(real(4, 3), tolerance=1e-5),))
def svdvals(x: Any, *, driver: Any = None) -> ast.expr:
    """`jnp.linalg.svd` without vectors."""
    return call("jnp.linalg.svd", x, compute_uv=False)


@op(
    "aten.linalg_qr.default",
    samples=(sample(real(4, 3), values=False, gradient=False, why=_SIGNS),),
)
def qr(x: Any, mode: str = "reduced") -> ast.expr:
    """`jnp.linalg.qr`: each column up to its sign."""
    demand(mode in ("reduced", "complete"), "qr without q")
    return call("jnp.linalg.qr", x, mode=mode)


@op(
    "aten.linalg_cross.default",
    samples=(sample(real(2, 3), real(2, 3)), sample(real(3, 2), real(3, 2), dim=0)),
)
def linalg_cross(x: Any, other: Any, *, dim: int = -1) -> ast.expr:
    """`jnp.cross`."""
    axis = axis_name(dim, x.ndim)
    return call("jnp.cross", x, other, **({} if axis == -1 else {"axis": axis}))


@op(
    "aten.cross.default",
    samples=(sample(real(2, 3), real(2, 3), 1), sample(real(3, 2), real(3, 2), 0)),
)
def cross(x: Any, other: Any, dim: int | None = None) -> ast.expr:
    """`jnp.cross`."""
    demand(dim is not None, "cross along the first axis of three, whichever that is")
    assert dim is not None
    return linalg_cross(x, other, dim=dim)


@op(
    "aten.linalg_vecdot.default",
    samples=(sample(real(2, 3), real(2, 3)), sample(real(3, 2), real(3, 2), dim=0)),
)
def vecdot(x: Any, y: Any, *, dim: int = -1) -> ast.expr:
    """`jnp.vecdot`."""
    return call("jnp.vecdot", x, y, axis=axis_name(dim, x.ndim))


def _transform(name: str, real_in: bool = False, from_half: bool = False) -> None:
    def write(x: Any, n: Any = None, dim: int = -1, norm: str | None = None) -> ast.expr:
        named: dict[str, Any] = {} if n is None else {"n": n}
        named |= {} if axis_of(dim, x.ndim) == x.ndim - 1 else {"axis": axis_name(dim, x.ndim)}
        named |= {} if norm in (None, "backward") else {"norm": norm}
        return call(f"jnp.fft.{name}", x, **named)

    def several(x: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> ast.expr:
        named: dict[str, Any] = {} if s is None else {"s": tuple(s)}
        if dim is not None:
            named["axes"] = tuple(
                axis_of(axis, x.ndim) for axis in ([dim] if isinstance(dim, int) else dim)
            )
        elif s is not None:
            named["axes"] = tuple(range(x.ndim - len(s), x.ndim))
        named |= {} if norm in (None, "backward") else {"norm": norm}
        return call(f"jnp.fft.{name}n", x, **named)

    def plane(x: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> ast.expr:
        return several(x, s, dim, norm)

    write.__doc__ = several.__doc__ = plane.__doc__ = f"`jnp.fft.{name}`."
    x = real(2, 4, 6) if real_in else real(2, 4, 6, dtype=_COMPLEX)
    long: dict[str, Any] = {"tolerance": 4e-6}
    no: dict[str, Any] = (
        {"gradient": False, "why": "of half a spectrum the gradients are a matter of convention"}
        if from_half
        else {}
    )
    op(
        f"aten.fft_{name}.default",
        samples=(
            sample(x, **long, **no),
            sample(x, 4, 1, "ortho", **long, **no),
            sample(x, 8, **long, **no),
        ),
    )(write)
    op(
        f"aten.fft_{name}n.default",
        samples=(
            sample(x, **long, **no),
            sample(x, None, [1, 2], "forward", **long, **no),
            sample(x, [4, 4], **long, **no),
        ),
    )(several)
    op(
        f"aten.fft_{name}2.default",
        samples=(sample(x, **long, **no), sample(x, None, [0, 1], **long, **no)),
    )(plane)


_transform("fft")
_transform("ifft")
_transform("rfft", real_in=True)
_transform("irfft", from_half=True)


def _shift(name: str) -> None:
    def write(x: Any, dim: Any = None) -> ast.expr:
        named = {} if dim is None else {"axes": tuple([dim] if isinstance(dim, int) else dim)}
        return call(f"jnp.fft.{name}", x, **named)

    write.__doc__ = f"`jnp.fft.{name}`."
    op(f"aten.fft_{name}.default", samples=(sample(real(4, 5)), sample(real(4, 5), [1])))(write)


_shift("fftshift")
_shift("ifftshift")


def _frequencies(name: str) -> None:
    def write(n: Any, d: float = 1.0, *, dtype: torch.dtype | None = None, out: Result) -> ast.expr:
        return call(f"jnp.fft.{name}", n, d, dtype=out.dtype)

    write.__doc__ = f"`jnp.fft.{name}`."
    op(f"aten.fft_{name}.default", samples=(sample(6), sample(5, 0.5)))(write)


_frequencies("fftfreq")
_frequencies("rfftfreq")

_NORMS = {True: ("backward", "ortho", "forward"), False: ("forward", "ortho", "backward")}


@op(
    "aten._fft_c2c.default",
    samples=(
        sample(real(2, 4, 6, dtype=_COMPLEX), [1, 2], 0, True, tolerance=4e-6),
        sample(real(2, 4, 6, dtype=_COMPLEX), [1], 2, False, tolerance=4e-6),
        sample(real(2, 4, 6, dtype=_COMPLEX), [2], 1, True, tolerance=4e-6),
    ),
)
def fft_c2c(x: Any, dim: Any, normalization: int, forward: bool) -> ast.expr:
    """`jnp.fft.fftn`, or its inverse."""
    named = {"norm": _NORMS[forward][normalization]}
    return call("jnp.fft.fftn" if forward else "jnp.fft.ifftn", x, axes=tuple(dim), **named)


@op(
    "aten._fft_r2c.default",
    samples=(
        sample(real(2, 4, 6), [2], 0, True, tolerance=4e-6),
        sample(real(2, 4, 6), [1, 2], 1, True, tolerance=4e-6),
        sample(real(2, 4, 6), [2], 2, False, tolerance=4e-6),
    ),
)
def fft_r2c(x: Any, dim: Any, normalization: int, onesided: bool) -> ast.expr:
    """`jnp.fft.rfftn`, or `jnp.fft.fftn`."""
    named = {"norm": _NORMS[True][normalization]}
    return call("jnp.fft.rfftn" if onesided else "jnp.fft.fftn", x, axes=tuple(dim), **named)


@op(
    "aten._fft_c2r.default",
    samples=(
        sample(
            real(2, 4, 6, dtype=_COMPLEX),
            [2],
            2,
            10,
            tolerance=4e-6,
            gradient=False,
            why="as above",
        ),
    ),
)
def fft_c2r(x: Any, dim: Any, normalization: int, last_dim_size: Any) -> ast.expr:
    """`jnp.fft.irfft`."""
    demand(len(dim) == 1, "a real transform back over several axes")
    return call(
        "jnp.fft.irfft",
        x,
        last_dim_size,
        axis=axis_name(dim[0], x.ndim),
        norm=_NORMS[False][normalization],
    )
