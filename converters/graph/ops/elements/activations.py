"""Activations."""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import call, code
from converters.graph.ops.parts import axis_name, cast, demand
from converters.graph.ops.registry import Result, integers, op, positive, real, sample, values

_REAL = (
    sample(real(2, 3)),
    sample(real(0, 3)),
    sample(real(2, 3, dtype=torch.bfloat16), gradient=False, why="bfloat16"),
)


def _activation(name: str, function: str, *samples: Any) -> None:
    def write(x: Any) -> ast.expr:
        return call(function, x)

    write.__doc__ = f"`{function}`."
    op(f"aten.{name}.default", samples=_REAL + samples)(write)


_activation("relu", "jax.nn.relu", sample(integers(5, low=-4)))
_activation("silu", "jax.nn.silu")
_activation("mish", "jax.nn.mish")
_activation("relu6", "jax.nn.relu6")
_activation("selu", "jax.nn.selu")
_activation("log_sigmoid", "jax.nn.log_sigmoid", sample(values(-100.0, 50.0)))


@op("aten.sigmoid.default", "aten.special_expit.default", samples=(*_REAL, sample(integers(3))))
def sigmoid(x: Any, out: Result) -> ast.expr:
    """`jax.nn.sigmoid`."""
    return call("jax.nn.sigmoid", cast(x, out.dtype))


@op(
    "aten.log_sigmoid_forward.default",
    samples=(
        sample(
            real(2, 3), values=False, gradient=False, why="the second result is torch's own buffer"
        ),
    ),
)
def log_sigmoid_forward(x: Any, out: Any) -> ast.expr:
    """`jax.nn.log_sigmoid`, and a buffer that only torch's backward reads: zeros."""
    return code("(jax.nn.log_sigmoid({x}), jnp.zeros({shape}))", x=x, shape=out[1].shape)


@op("aten.gelu.default", samples=(*_REAL, sample(real(2, 3), approximate="tanh")))
def gelu(x: Any, approximate: str = "none") -> ast.expr:
    """`jax.nn.gelu`, whose default is the tanh form."""
    return call("jax.nn.gelu", x, approximate=approximate == "tanh")


@op("aten.elu.default", samples=(*_REAL, sample(real(5), 0.5), sample(real(5), 0.5, 2.0, 0.3)))
def elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> ast.expr:
    """`jax.nn.elu`, or its three-number form."""
    if scale == 1 and input_scale == 1:
        return call("jax.nn.elu", x) if alpha == 1 else call("jax.nn.elu", x, alpha)
    return code(
        "{scale} * jnp.where({x} > 0, {x}, {alpha} * jnp.expm1({input_scale} * {x}))",
        x=x,
        alpha=alpha,
        scale=scale,
        input_scale=input_scale,
    )


@op("aten.celu.default", samples=(*_REAL, sample(real(5), 0.5)))
def celu(x: Any, alpha: Any = 1.0) -> ast.expr:
    """`jax.nn.celu`."""
    return call("jax.nn.celu", x) if alpha == 1 else call("jax.nn.celu", x, alpha)


@op("aten.leaky_relu.default", samples=(*_REAL, sample(real(5), 0.2)))
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> ast.expr:
    """`x`, times a slope where it is not above 0."""
    return call("leaky_relu", x, negative_slope)


@op(
    "aten.prelu.default",
    samples=(
        sample(real(2, 3, 4), positive(3)),
        sample(real(2, 3), positive(1)),
        sample(real(5), positive()),
    ),
)
def prelu(x: Any, weight: Any) -> ast.expr:
    """A slope for each channel, applied where the input is negative."""
    if weight.ndim == 1 and weight.shape[0] != 1 and x.ndim > 2:
        weight = code(
            "{w}[{*axes}]", w=weight, axes=[ast.Slice(), *[ast.Constant(None)] * (x.ndim - 2)]
        )
    return code("jnp.where({x} > 0, {x}, {w} * {x})", x=x, w=weight)


@op(
    "aten.softplus.default",
    samples=(*_REAL, sample(real(5), 2), sample(values(5.0, 25.0, 9.0)), sample(real(5), 1.5, 0.5)),
)
def softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> ast.expr:
    """`log(1 + exp(beta * x)) / beta`; `x` itself above the threshold."""
    if threshold >= 20:
        scaled = x if beta == 1 else code("{beta} * {x}", beta=beta, x=x)
        softened = call("jax.nn.softplus", scaled)
        return softened if beta == 1 else code("{made} / {beta}", made=softened, beta=beta)
    return code(
        "jnp.where({beta} * {x} > {threshold}, {x}, jax.nn.softplus({beta} * {x}) / {beta})",
        beta=beta,
        x=x,
        threshold=threshold,
    )


@op(
    "aten.hardtanh.default",
    samples=(*_REAL, sample(real(5), -0.5, 0.25), sample(real(5), 0.0, 6.0)),
)
def hardtanh(x: Any, min_val: Any = -1, max_val: Any = 1) -> ast.expr:
    """`jnp.clip` between two numbers; at a bound the gradient is 0."""
    demand(x.dtype.is_floating_point, "integers between bounds that are cut off")
    if (min_val, max_val) == (0, 6):
        return call("jax.nn.relu6", x)
    return call("hard_tanh", x, min_val, max_val)


@op("aten.hardsigmoid.default", samples=(*_REAL, sample(values(-4.0, 4.0))))
def hardsigmoid(x: Any) -> ast.expr:
    """`jax.nn.hard_sigmoid`."""
    return call("jax.nn.hard_sigmoid", x)


@op("aten.hardswish.default", samples=(*_REAL, sample(values(-4.0, 4.0))))
def hardswish(x: Any) -> ast.expr:
    """`jax.nn.hard_swish`."""
    return call("jax.nn.hard_swish", x)


@op("aten.hardshrink.default", samples=(*_REAL, sample(real(5), 0.2)))
def hardshrink(x: Any, lambd: Any = 0.5) -> ast.expr:
    """`x`, or 0 where its absolute value is at most `lambd`."""
    return code("jnp.where(jnp.abs({x}) > {lambd}, {x}, 0.0)", x=x, lambd=lambd)


@op("aten.softshrink.default", samples=(*_REAL, sample(real(5), 0.2)))
def softshrink(x: Any, lambd: Any = 0.5) -> ast.expr:
    """`x` moved towards 0 by `lambd`."""
    return code(
        "jnp.where(jnp.abs({x}) > {lambd}, {x} - {lambd} * jnp.sign({x}), 0 * {x})",
        x=x,
        lambd=lambd,
    )


@op("aten.threshold.default", samples=(sample(real(2, 3), 0.1, 20.0), sample(integers(4), 3, 0)))
def threshold(x: Any, threshold: Any, value: Any) -> ast.expr:
    """`x` above the threshold, else `value`."""
    return code("jnp.where({x} > {threshold}, {x}, {value})", x=x, threshold=threshold, value=value)


@op("aten.glu.default", samples=(sample(real(2, 4)), sample(real(4, 3), 0)))
def glu(x: Any, dim: int = -1) -> ast.expr:
    """`jax.nn.glu`: one half of `x` times the sigmoid of the other half."""
    return call("jax.nn.glu", x, axis=axis_name(dim, x.ndim))


@op(
    "aten.softmax.int",
    "aten.special_softmax.default",
    samples=(
        sample(real(2, 3), -1),
        sample(real(2, 3, 4), 1),
        sample(real(2, 3, dtype=torch.bfloat16), -1, torch.float32, gradient=False, why="bfloat16"),
        sample(integers(2, 3), -1, torch.float32),
        sample(real(), 0),
        sample(
            values([[0.0, -torch.inf], [-torch.inf, -torch.inf]]), -1, gradient=False, why="NaN"
        ),
    ),
)
def softmax(x: Any, dim: int, dtype: torch.dtype | None = None) -> ast.expr:
    """`jax.nn.softmax`."""
    if dtype is not None:
        x = cast(x, dtype)
    if x.ndim == 0:
        return code("jax.nn.softmax({x}[None])[0]", x=x)
    return call("jax.nn.softmax", x, axis=axis_name(dim, x.ndim))


@op(
    "aten.log_softmax.int",
    "aten.special_log_softmax.default",
    samples=(
        sample(real(2, 3), -1),
        sample(real(2, 3, 4), 1),
        sample(real(2, 3, dtype=torch.bfloat16), -1, torch.float32, gradient=False, why="bfloat16"),
    ),
)
def log_softmax(x: Any, dim: int, dtype: torch.dtype | None = None) -> ast.expr:
    """`jax.nn.log_softmax`."""
    if dtype is not None:
        x = cast(x, dtype)
    if x.ndim == 0:
        return code("jax.nn.log_softmax({x}[None])[0]", x=x)
    return call("jax.nn.log_softmax", x, axis=axis_name(dim, x.ndim))


@op(
    "aten._softmax.default",
    samples=(sample(real(2, 3), -1, False), sample(real(2, 3, 4), 1, False)),
)
def softmax_core(x: Any, dim: int, half_to_float: bool) -> ast.expr:
    """`jax.nn.softmax`."""
    return softmax(x, dim, torch.float32 if half_to_float else None)


@op(
    "aten._log_softmax.default",
    samples=(sample(real(2, 3), -1, False), sample(real(2, 3, 4), 1, False)),
)
def log_softmax_core(x: Any, dim: int, half_to_float: bool) -> ast.expr:
    """`jax.nn.log_softmax`."""
    return log_softmax(x, dim, torch.float32 if half_to_float else None)


@op(
    "aten._safe_softmax.default",
    samples=(
        sample(real(2, 3), -1),
        sample(
            values([[0.0, -torch.inf], [-torch.inf, -torch.inf]]), -1, gradient=False, why="NaN"
        ),
    ),
)
def safe_softmax(x: Any, dim: int, dtype: torch.dtype | None = None) -> ast.expr:
    """`jax.nn.softmax`; 0 where everything is minus infinity."""
    if dtype is not None:
        x = cast(x, dtype)
    return call("safe_softmax", x, axis_name(dim, x.ndim))


@op("aten.rrelu.default", samples=(sample(real(2, 3)),))
def rrelu(
    x: Any, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False, generator: Any = None
) -> ast.expr:
    """A leaky ReLU in evaluation."""
    demand(not training, "rrelu in training draws random slopes")
    return code("leaky_relu({x}, {slope})", x=x, slope=(lower + upper) / 2)
