"""Normalization."""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import call, code, method
from converters.graph.ops.parts import cast, demand, norm_of
from converters.graph.ops.registry import Tensor, op, positive, real, sample, within

_EPS = 1e-5


def _given(**named: Any) -> dict[str, Any]:
    return {name: weight for name, weight in named.items() if weight is not None}


def _layer_norm(x: Any, count: int, weight: Any, bias: Any, eps: Any) -> ast.expr:
    named = _given(weight=weight, bias=bias) | {"eps": eps}
    return call("layer_norm", x, **named, **({"axes": count} if count > 1 else {}))


@op(
    "aten.layer_norm.default",
    samples=(
        sample(real(2, 3, 4), [4], real(4), real(4)),
        sample(real(2, 3, 4), [3, 4], real(3, 4)),
        sample(real(2, 4), [4]),
        sample(real(2, 4), [4], None, real(4), 1e-3),
    ),
)
def layer_norm(
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: Any = _EPS,
    cudnn_enable: bool = True,
) -> ast.expr:
    """Normalize the last axes to mean 0 and variance 1."""
    return _layer_norm(x, len(normalized_shape), weight, bias, eps)


@op(
    "aten.native_layer_norm.default",
    samples=(
        sample(
            real(2, 3, 4),
            [4],
            real(4),
            real(4),
            _EPS,
            gradient=False,
            why="torch gives none of what comes beside",
        ),
        sample(
            real(2, 3, 4),
            [3, 4],
            None,
            None,
            _EPS,
            gradient=False,
            why="torch gives none of what comes beside",
        ),
    ),
)
def native_layer_norm(x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> ast.expr:
    """Layer norm, with the mean and the reciprocal standard deviation."""
    axes = tuple(range(-len(normalized_shape), 0)) if len(normalized_shape) > 1 else -1
    return code(
        "({made}, {mean}, jax.lax.rsqrt({var} + {eps}))",
        made=_layer_norm(x, len(normalized_shape), weight, bias, eps),
        mean=method(x, "mean", axis=axes, keepdims=True),
        var=method(x, "var", axis=axes, keepdims=True),
        eps=eps,
    )


@op(
    "aten.rms_norm.default",
    samples=(
        sample(real(2, 3, 4), [4], real(4)),
        sample(real(2, 4), [4], None, 1e-3),
        sample(real(2, 3, 4), [3, 4]),
    ),
)
def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> ast.expr:
    """Normalize the last axes to mean square 1."""
    axes = tuple(range(-len(normalized_shape), 0)) if len(normalized_shape) > 1 else -1
    # torch computes 16 bits in float32, and uses float32's epsilon.
    kind = torch.promote_types(x.dtype, torch.float32)
    small = torch.finfo(kind).eps if eps is None else eps
    wide = cast(x, kind)
    mean = code("jnp.square({x}).mean(axis={axes}, keepdims=True)", x=wide, axes=axes)
    normed = code("{x} * jax.lax.rsqrt({mean} + {eps})", x=wide, mean=mean, eps=small)
    normed = cast(Tensor(x.shape, kind, normed), x.dtype).code
    return normed if weight is None else code("{made} * {weight}", made=normed, weight=weight)


@op(
    "aten.group_norm.default",
    samples=(
        sample(real(2, 6, 3), 3, real(6), real(6)),
        sample(real(2, 6, 3, 2), 2),
        sample(real(2, 4), 2, real(4), real(4), 1e-3),
    ),
)
def group_norm(
    x: Any,
    num_groups: Any,
    weight: Any = None,
    bias: Any = None,
    eps: Any = _EPS,
    cudnn_enabled: bool = True,
) -> ast.expr:
    """Normalize groups of channels to mean 0 and variance 1."""
    return call("group_norm", x, num_groups, **_given(weight=weight, bias=bias), eps=eps)


@op(
    "aten.native_group_norm.default",
    samples=(
        sample(
            real(2, 6, 3),
            real(6),
            real(6),
            2,
            6,
            3,
            3,
            _EPS,
            gradient=False,
            why="torch gives none of what comes beside",
        ),
        sample(
            real(2, 6, 3),
            None,
            None,
            2,
            6,
            3,
            2,
            _EPS,
            gradient=False,
            why="torch gives none of what comes beside",
        ),
    ),
)
def native_group_norm(
    x: Any, weight: Any, bias: Any, n: Any, c: Any, places: Any, group: Any, eps: Any
) -> ast.expr:
    """Group norm, with the means and the reciprocal standard deviations."""
    groups = code("{x}.reshape({n}, {g}, -1)", x=x, n=n, g=group)
    return code(
        "({made}, {groups}.mean(axis=-1), jax.lax.rsqrt({groups}.var(axis=-1) + {eps}))",
        made=call("group_norm", x, group, **_given(weight=weight, bias=bias), eps=eps),
        groups=groups,
        eps=eps,
    )


@op(
    "aten.instance_norm.default",
    samples=(
        sample(real(2, 3, 5), real(3), real(3), None, None, True, 0.1, _EPS, False),
        sample(real(2, 3, 5, 2), None, None, None, None, True, 0.1, 1e-3, False),
        sample(real(2, 3, 5), real(3), None, real(3), positive(3), False, 0.1, _EPS, False),
    ),
)
def instance_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: Any,
    cudnn_enabled: bool,
) -> ast.expr:
    """Normalize each channel of each example to mean 0 and variance 1."""
    if not use_input_stats:
        return _batch_norm(x, weight, bias, running_mean, running_var, eps)
    demand(running_mean is None, "instance_norm that keeps running statistics in training")
    return call("group_norm", x, x.shape[1], **_given(weight=weight, bias=bias), eps=eps)


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, eps: Any) -> ast.expr:
    return call("batch_norm", x, mean, var, **_given(weight=weight, bias=bias), eps=eps)


_STATISTICS = (real(3), real(3), real(3), positive(3))


@op(
    "aten.batch_norm.default",
    samples=(
        sample(real(2, 3, 5), *_STATISTICS, False, 0.1, _EPS, True),
        sample(real(4, 3), *_STATISTICS, False, 0.1, 1e-3, True),
        sample(real(2, 3, 4, 5), None, None, real(3), positive(3), False, 0.1, _EPS, True),
        sample(real(4, 3, 2), real(3), real(3), None, None, True, 0.1, _EPS, True),
    ),
)
def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: Any,
    cudnn_enabled: bool,
) -> ast.expr:
    """Normalize channels by the running statistics, or in training by those of the batch."""
    if not training:
        return _batch_norm(x, weight, bias, running_mean, running_var, eps)
    demand(
        running_mean is None, "batch_norm that keeps running statistics in training: its layer does"
    )
    return _batch_norm(x, weight, bias, *_of_batch(x), eps)


def _of_batch(x: Any) -> tuple[ast.expr, ast.expr]:
    axes = (0, *range(2, x.ndim)) if x.ndim > 2 else 0
    return method(x, "mean", axis=axes), method(x, "var", axis=axes)


@op(
    "aten._native_batch_norm_legit_no_training.default",
    samples=(sample(real(2, 3, 5), *_STATISTICS, 0.1, _EPS),),
)
def native_batch_norm_eval(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: Any
) -> ast.expr:
    """Batch norm by the running statistics; torch returns two empty tensors too."""
    normed = _batch_norm(x, weight, bias, running_mean, running_var, eps)
    return code("({made}, jnp.zeros(0), jnp.zeros(0))", made=normed)


@op(
    "aten._native_batch_norm_legit_functional.default",
    samples=(
        sample(
            real(4, 3, 5),
            real(3),
            real(3),
            real(3),
            positive(3),
            True,
            0.1,
            _EPS,
            gradient=False,
            why="torch gives none of what comes beside",
        ),
        sample(
            real(2, 3, 5),
            *_STATISTICS,
            False,
            0.1,
            _EPS,
            gradient=False,
            why="torch gives none of what comes beside",
        ),
    ),
)
def native_batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: Any,
    eps: Any,
) -> ast.expr:
    """Batch norm by the batch's statistics, with these and the new running statistics.

    The running variance is unbiased.
    """
    if not training:
        normed = _batch_norm(x, weight, bias, running_mean, running_var, eps)
        return code(
            "({made}, jnp.zeros(0), jnp.zeros(0), {m}, {v})",
            made=normed,
            m=running_mean,
            v=running_var,
        )
    mean, var = _of_batch(x)
    axes = (0, *range(2, x.ndim)) if x.ndim > 2 else 0
    return code(
        "({made}, {mean}, jax.lax.rsqrt({var} + {eps}), (1 - {momentum}) * {rm} + {momentum} * {mean},"
        " (1 - {momentum}) * {rv} + {momentum} * {unbiased})",
        made=_batch_norm(x, weight, bias, mean, var, eps),
        mean=mean,
        var=var,
        eps=eps,
        momentum=momentum,
        rm=running_mean,
        rv=running_var,
        unbiased=method(x, "var", axis=axes, ddof=1),
    )


@op(
    "aten._native_batch_norm_legit.no_stats",
    samples=(
        sample(
            real(4, 3, 5),
            real(3),
            real(3),
            True,
            0.1,
            _EPS,
            gradient=False,
            why="torch gives none of what comes beside",
        ),
    ),
)
def native_batch_norm_plain(
    x: Any, weight: Any, bias: Any, training: bool, momentum: Any, eps: Any
) -> ast.expr:
    """Batch norm by the batch's statistics, with these."""
    mean, var = _of_batch(x)
    return code(
        "({made}, {mean}, jax.lax.rsqrt({var} + {eps}))",
        made=_batch_norm(x, weight, bias, mean, var, eps),
        mean=mean,
        var=var,
        eps=eps,
    )


@op(
    "aten._weight_norm.default",
    samples=(
        sample(real(4, 3, 2), positive(4, 1, 1)),
        sample(real(4, 3), positive(1, 3), 1),
        sample(real(4, 3), positive(), -1),
    ),
)
def weight_norm(v: Any, g: Any, dim: int = 0) -> ast.expr:
    """A direction times a length."""
    return _weight_norm(v, g, dim)[0]


def _weight_norm(v: Any, g: Any, dim: int) -> tuple[ast.expr, ast.expr]:
    axes = tuple(axis for axis in range(v.ndim) if dim == -1 or axis != dim % v.ndim)
    named = {} if dim == -1 else {"axis": axes if len(axes) > 1 else axes[0], "keepdims": True}
    length = call("jnp.linalg.vector_norm", v, **named)
    return code("{v} * ({g} / {length})", v=v, g=g, length=length), length


@op(
    "aten._weight_norm_interface.default",
    samples=(
        sample(
            real(4, 3, 2),
            positive(4, 1, 1),
            gradient=False,
            why="torch gives none of what comes beside",
        ),
    ),
)
def weight_norm_interface(v: Any, g: Any, dim: int = 0) -> ast.expr:
    """A direction times a length, and the norm of the direction."""
    weight, length = _weight_norm(v, g, dim)
    return code("({a}, {b})", a=weight, b=length)


@op(
    "aten.cosine_similarity.default",
    samples=(sample(real(2, 3), real(2, 3)), sample(real(2, 3, 4), real(2, 3, 4), -1)),
)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: Any = 1e-8) -> ast.expr:
    """The cosine of the angle between vectors."""
    return call("cosine_similarity", x1, x2, int(dim), eps)


@op(
    "aten.pairwise_distance.default",
    samples=(sample(real(2, 3), real(2, 3)), sample(real(2, 3), real(2, 3), 1.0, 1e-3, True)),
)
def pairwise_distance(
    x1: Any, x2: Any, p: Any = 2, eps: Any = 1e-6, keepdim: bool = False
) -> ast.expr:
    """The norm of the difference."""
    difference = Tensor(x1.shape, x1.dtype, code("{a} - {b} + {eps}", a=x1, b=x2, eps=eps))
    return norm_of(difference, p, axis=-1, **({"keepdims": True} if keepdim else {}))


@op(
    "aten.cdist.default",
    samples=(sample(real(2, 3, 4), real(2, 5, 4)), sample(real(3, 4), real(5, 4), 1.0)),
)
def cdist(x1: Any, x2: Any, p: Any = 2, compute_mode: Any = None) -> ast.expr:
    """The distances between all pairs of points."""
    differences = code("{a}[..., :, None, :] - {b}[..., None, :, :]", a=x1, b=x2)
    return norm_of(Tensor(x1.shape, x1.dtype, differences), p, axis=-1)


@op(
    "aten.renorm.default",
    samples=(sample(within(0.5, 2, 3, 4), 2, 0, 1.5), sample(within(0.5, 2, 3, 4), 1, -1, 1.5)),
)
def renorm(x: Any, p: Any, dim: int, maxnorm: Any) -> ast.expr:
    """Slices scaled down to the maximum norm."""
    axes = tuple(axis for axis in range(x.ndim) if axis != dim % x.ndim)
    length = norm_of(x, p, axis=axes if len(axes) > 1 else axes[0], keepdims=True)
    return code(
        "{x} * jnp.where({length} > {maxnorm}, {maxnorm} / ({length} + 1e-7), 1.0)",
        x=x,
        length=length,
        maxnorm=maxnorm,
    )
