"""Products of matrices, attention, experts."""

from __future__ import annotations

import ast
import math
from typing import Any

import torch

from converters.graph.expression import call, code, method
from converters.graph.ops.parts import demand, tupled
from converters.graph.ops.registry import Tensor, integers, op, real, sample, truths, values

_BFLOAT = torch.bfloat16


@op("aten.mm.default", samples=(sample(real(2, 3), real(3, 4)), sample(real(0, 3), real(3, 4))))
def mm(x: Any, mat2: Any) -> ast.expr:
    """`x @ other`."""
    return code("{x} @ {y}", x=x, y=mat2)


@op("aten.bmm.default", samples=(sample(real(5, 2, 3), real(5, 3, 4)),))
def bmm(x: Any, mat2: Any) -> ast.expr:
    """`x @ other`."""
    return code("{x} @ {y}", x=x, y=mat2)


@op(
    "aten.matmul.default",
    "aten.linalg_matmul.default",
    samples=(
        sample(real(2, 3), real(3, 4)),
        sample(real(5, 1, 2, 3), real(4, 3, 2)),
        sample(real(3), real(3)),
        sample(real(3), real(2, 3, 4)),
        sample(real(5, 2, 3), real(3)),
        sample(integers(2, 3), integers(3, 2)),
    ),
)
def matmul(x: Any, other: Any) -> ast.expr:
    """`x @ other`."""
    return code("{x} @ {y}", x=x, y=other)


@op("aten.mv.default", samples=(sample(real(2, 3), real(3)),))
def mv(x: Any, vec: Any) -> ast.expr:
    """`x @ other`."""
    return code("{x} @ {y}", x=x, y=vec)


@op("aten.dot.default", samples=(sample(real(3), real(3)), sample(integers(3), integers(3))))
def dot(x: Any, tensor: Any) -> ast.expr:
    """`x @ other`."""
    return code("{x} @ {y}", x=x, y=tensor)


@op(
    "aten.vdot.default",
    samples=(
        sample(real(3), real(3)),
        sample(real(3, dtype=torch.complex64), real(3, dtype=torch.complex64)),
    ),
)
def vdot(x: Any, other: Any) -> ast.expr:
    """`jnp.vdot`."""
    return call("jnp.vdot", x, other)


@op(
    "aten.outer.default",
    "aten.ger.default",
    samples=(sample(real(2), real(3)), sample(integers(2), integers(3))),
)
def outer(x: Any, vec2: Any) -> ast.expr:
    """`jnp.outer`."""
    return call("jnp.outer", x, vec2)


@op("aten.inner.default", samples=(sample(real(2, 3), real(4, 3)), sample(real(3), real(3))))
def inner(x: Any, other: Any) -> ast.expr:
    """`jnp.inner`."""
    return call("jnp.inner", x, other)


@op("aten.kron.default", samples=(sample(real(2, 3), real(2, 2)),))
def kron(x: Any, other: Any) -> ast.expr:
    """`jnp.kron`."""
    return call("jnp.kron", x, other)


@op(
    "aten.linear.default",
    samples=(
        sample(real(2, 3), real(4, 3), real(4)),
        sample(real(2, 5, 3), real(4, 3)),
        sample(real(3), real(4, 3), real(4)),
        sample(real(2, 3), real(3)),
    ),
)
def linear(x: Any, weight: Any, bias: Any = None) -> ast.expr:
    """`x @ weight.T + bias`."""
    product = code("{x} @ {w}.T" if weight.ndim > 1 else "{x} @ {w}", x=x, w=weight)
    return product if bias is None else code("{made} + {bias}", made=product, bias=bias)


def _times(value: Any, factor: Any) -> Any:
    return value if factor == 1 else code("{factor} * {value}", factor=factor, value=value)


def _added(x: Any, product: ast.expr, beta: Any, alpha: Any) -> ast.expr:
    real_ = x.dtype.is_floating_point or x.dtype.is_complex
    plain = beta in (0, 1) and alpha == 1
    whole = x.dtype != torch.bool and isinstance(beta, int) and isinstance(alpha, int)
    demand(real_ or plain or whole, "integers times numbers with fractions, cut off")
    if (
        isinstance(beta, int | float) and beta == 0
    ):  # with beta 0 nothing of `x` counts, not even NaN
        return code("{p}", p=_times(product, alpha))
    return code("{x} + {p}", x=_times(x, beta), p=_times(product, alpha))


_ADDED = (
    sample(real(4), real(2, 3), real(3, 4)),
    sample(real(2, 4), real(2, 3), real(3, 4), beta=0.5, alpha=2),
    sample(real(2, 4), real(2, 3), real(3, 4), beta=0),
)


@op("aten.addmm.default", samples=_ADDED)
def addmm(x: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> ast.expr:
    """`x + mat1 @ mat2`, written with the product first, like a layer's bias."""
    product = code("{a} @ {b}", a=mat1, b=mat2)
    if beta == 1 and alpha == 1:
        return code("{p} + {x}", p=product, x=x)
    return _added(x, product, beta, alpha)


@op(
    "aten.baddbmm.default",
    samples=(
        sample(real(4), real(5, 2, 3), real(5, 3, 4)),
        sample(real(5, 2, 4), real(5, 2, 3), real(5, 3, 4), beta=0.5, alpha=0.25),
        sample(real(5, 2, 4), real(5, 2, 3), real(5, 3, 4), beta=0, alpha=0.25),
    ),
)
def baddbmm(x: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> ast.expr:
    """`beta * x + alpha * batch1 @ batch2`."""
    return _added(x, code("{a} @ {b}", a=batch1, b=batch2), beta, alpha)


@op("aten.addbmm.default", samples=(sample(real(2, 4), real(5, 2, 3), real(5, 3, 4)),))
def addbmm(x: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> ast.expr:
    """`beta * x + alpha * (batch1 @ batch2).sum(0)`."""
    return _added(x, code("({a} @ {b}).sum(axis=0)", a=batch1, b=batch2), beta, alpha)


@op(
    "aten.addmv.default",
    samples=(
        sample(real(2), real(2, 3), real(3)),
        sample(real(2), real(2, 3), real(3), beta=2, alpha=3),
    ),
)
def addmv(x: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> ast.expr:
    """`beta * x + alpha * mat @ vec`."""
    return _added(x, code("{a} @ {b}", a=mat, b=vec), beta, alpha)


@op(
    "aten.addr.default",
    samples=(
        sample(real(2, 3), real(2), real(3)),
        sample(values(torch.nan), real(2), real(3), beta=0.0, alpha=0.5, gradient=False, why="NaN"),
    ),
)
def addr(x: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> ast.expr:
    """`beta * x + alpha * outer(vec1, vec2)`."""
    return _added(x, call("jnp.outer", vec1, vec2), beta, alpha)


@op(
    "aten.einsum.default",
    samples=(
        sample("bij,bjk->bik", [real(2, 3, 4), real(2, 4, 5)]),
        sample("...d,d", [real(2, 3, 4), real(4)]),
        sample("ii->i", [real(3, 3)]),
        sample("b i, j i -> b j", [real(2, 3), real(4, 3)]),
    ),
)
def einsum(equation: str, tensors: Any, *, path: Any = None) -> ast.expr:
    """`jnp.einsum`."""
    return code("jnp.einsum({equation}, {*tensors})", equation=equation, tensors=tensors)


@op(
    "aten.bilinear.default",
    samples=(
        sample(real(2, 3), real(2, 4), real(5, 3, 4), real(5)),
        sample(real(2, 3), real(2, 4), real(5, 3, 4)),
    ),
)
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> ast.expr:
    """`input1 @ weight @ input2` for each output."""
    product = code("jnp.einsum('...i,oij,...j->...o', {a}, {w}, {b})", a=input1, b=input2, w=weight)
    return product if bias is None else code("{made} + {bias}", made=product, bias=bias)


_KEYS = (real(2, 4, 3, 8), real(2, 4, 5, 8), real(2, 4, 5, 8))
_GROUPED = (real(2, 4, 3, 8), real(2, 2, 5, 8), real(2, 2, 5, 8))
_HALF = tuple(real(2, 4, 3, 8, dtype=_BFLOAT) for _ in range(3))


def is_usual(scale: float, query: Tensor) -> bool:
    """Whether a scale is the default, one over the square root of the features."""
    features = query.shape[-1]
    return isinstance(features, int) and math.isclose(scale, features**-0.5, rel_tol=1e-12)


@op(
    "aten.scaled_dot_product_attention.default",
    samples=(
        sample(*_KEYS),
        sample(*_KEYS, is_causal=True),
        sample(*_KEYS, scale=0.3),
        sample(*_KEYS, truths(2, 1, 3, 5)),
        sample(*_KEYS, truths(3, 5)),
        sample(*_KEYS, values([[True, True, False, False, True]])),
        sample(*_KEYS, real(2, 4, 3, 5)),
        sample(*_KEYS, real(3, 5), scale=1.0),
        sample(
            *_KEYS,
            values([[[[0.0] * 5, [-torch.inf] * 5, [0.0] * 4 + [-torch.inf]]]]),
            gradient=False,
            why="NaN in torch",
        ),
        sample(*_GROUPED, enable_gqa=True),
        sample(*_GROUPED, truths(2, 1, 3, 5), enable_gqa=True),
        sample(*_GROUPED, is_causal=True, enable_gqa=True),
        sample(real(4, 3, 8), real(4, 5, 8), real(4, 5, 8)),
        sample(real(4, 3, 8), real(4, 5, 8), real(4, 5, 8), truths(3, 5)),
        sample(real(2, 4, 3, 8), real(2, 4, 5, 8), real(2, 4, 5, 6)),
        sample(real(2, 4, 3, 8), real(2, 4, 5, 8), real(2, 4, 5, 6), truths(2, 1, 3, 5)),
        sample(real(2, 4, 3, 8), real(2, 4, 5, 8), real(2, 4, 5, 6), is_causal=True),
        sample(real(2, 2, 4, 3, 8), real(2, 2, 4, 5, 8), real(2, 2, 4, 5, 8)),
        sample(*_HALF, is_causal=True, tolerance=1e-2, gradient=False, why="bfloat16"),
    ),
)
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> ast.expr:
    """`jax.nn.dot_product_attention`, whose heads come after the length.

    A query that a boolean mask shuts off from every key gets 0 in torch and the mean of all values
    in JAX: the function `masked_attention` gives 0 too.
    """
    demand(dropout_p == 0, "attention with dropout draws random numbers")
    options: dict[str, Any] = {}
    if scale is not None and not is_usual(scale, query):
        options["scale"] = scale
    if is_causal:
        options["is_causal"] = True
    mask = attn_mask
    if not _has_its_form(query, key, value):
        if enable_gqa:
            key, value = (
                call(
                    "jnp.repeat",
                    heads,
                    code("{q} // {k}", q=query.shape[-3], k=heads.shape[-3]),
                    axis=-3,
                )
                for heads in (key, value)
            )
        if mask is not None:
            options["mask"] = mask
        return call("general_attention", query, key, value, **options)
    axes = (0, 1) if query.ndim == 3 else (1, 2)
    heads_last = [method(heads, "swapaxes", *axes) for heads in (query, key, value)]
    function = "jax.nn.dot_product_attention"
    if mask is not None:
        function = "masked_attention" if mask.dtype == torch.bool else "biased_attention"
        heads_last.append(mask)
    return method(call(function, *heads_last, **options), "swapaxes", *axes)


def _has_its_form(query: Any, key: Any, value: Any) -> bool:
    """Whether JAX's function accepts these: equal batches, and values as wide as keys."""
    if query.ndim not in (3, 4) or not query.ndim == key.ndim == value.ndim:
        return False
    hints = [
        [getattr(side, "hint", side) for side in tensor.shape] for tensor in (query, key, value)
    ]
    q, k, v = hints
    if 0 in q + k + v:
        return False
    alike = q[:-3] == k[:-3] and k[:-1] == v[:-1] and q[-1] == k[-1] == v[-1]
    return alike and query.dtype == key.dtype == value.dtype and q[-3] % k[-3] == 0


@op(
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    samples=(
        sample(*_KEYS, gradient=False, why="compared above"),
        sample(*_KEYS, 0.0, True, scale=0.3, gradient=False, why="compared above"),
    ),
)
def flash_attention(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> ast.expr:
    """The attention, and the logarithm of the sum of its exponential scores."""
    demand(attn_mask is None, "the logarithms of a masked attention's sums")
    attended = attention(query, key, value, None, dropout_p, is_causal, scale=scale)
    named = {} if scale is None else {"scale": scale}
    return tupled(attended, call("attention_log_sums", query, key, is_causal, **named))


def _by_groups(x: Any, weight: Any, offs: Any) -> ast.expr:
    return code(
        "jax.lax.ragged_dot({x}, {w}, jnp.diff({offs}, prepend=0))", x=x, w=weight, offs=offs
    )


@op(
    "aten._grouped_mm.default",
    samples=(
        sample(
            real(6, 8, dtype=_BFLOAT),
            real(2, 8, 8, dtype=_BFLOAT),
            values(2, 6, dtype=torch.int32),
            gradient=False,
            tolerance=1e-2,
            why="bfloat16",
        ),
    ),
)
def grouped_mm(
    x: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> ast.expr:
    """`jax.lax.ragged_dot`: the rows up to each offset times a separate matrix."""
    demand(
        isinstance(offs, Tensor) and bias is None,
        "a grouped product without offsets, or with a bias",
    )
    demand(x.ndim == 2 and mat2.ndim == 3, "a grouped product of other than rows by matrices")
    product = _by_groups(x, mat2, offs)
    return product if out_dtype in (None, x.dtype) else method(product, "astype", out_dtype)


@op(
    "transformers.grouped_mm_fallback.default",
    samples=(
        sample(real(6, 3), real(2, 3, 4), values(2, 6, dtype=torch.int32)),
        sample(real(7, 3), real(3, 3, 4), values(2, 2, 6, dtype=torch.int32)),
    ),
)
def grouped_mm_of_transformers(x: Any, weight: Any, offs: Any) -> ast.expr:
    """`jax.lax.ragged_dot`: the rows up to each offset times a separate matrix."""
    return _by_groups(x, weight, offs)
