"""Operators that draw random numbers, each with its own key from the drawing module
(`self.make_rng`).
"""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import DROPOUT, NOISE, Hole, Rng, call, code, method
from converters.graph.ops.parts import demand
from converters.graph.ops.registry import Result, Tensor, op, positive, real, sample, within

_WHY = "it draws: tests/port/test_draws.py feeds both sides the same draws"
_DRAWN: dict[str, Any] = {"values": False, "gradient": False, "why": _WHY}


def _key() -> Hole:
    return Hole(Rng(NOISE))


def _draw(name: str, out: Result, *parameters: Any, like: Any = None, **named: Any) -> ast.expr:
    """`jax.random.name(key, …, shape, dtype)` of the result's shape and dtype."""
    plain = isinstance(like, Tensor) and isinstance(like.code, Hole)
    shape: Any = _attribute(like, "shape") if plain else tuple(out.shape)
    if plain and like.dtype == out.dtype:
        dtype: tuple[Any, ...] = (_attribute(like, "dtype"),)
    else:
        dtype = () if out.dtype == torch.float32 else (out.dtype,)
    return call(f"jax.random.{name}", _key(), *parameters, shape, *dtype, **named)


def _attribute(x: Any, name: str) -> ast.expr:
    return ast.Attribute(x.code, name, ast.Load())


def _scaled(drawn: ast.expr, mean: Any, std: Any) -> ast.expr:
    """`mean + std * drawn`, without neutral terms."""
    scaled = (
        drawn if std == 1 and not isinstance(std, Tensor) else code("{s} * {d}", s=std, d=drawn)
    )
    plain = mean == 0 and not isinstance(mean, Tensor)
    return scaled if plain else code("{m} + {made}", m=mean, made=scaled)


def _stopped(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return Tensor(value.shape, value.dtype, call("jax.lax.stop_gradient", value))


@op(
    "aten.randn.default",
    "aten.randn.generator",
    samples=(
        sample([2, 3], **_DRAWN),
        sample([2], dtype=torch.bfloat16, **_DRAWN),
        sample([2, 3], generator=None, **_DRAWN),
    ),
)
def randn(*size: Any, out: Result, generator: Any = None, dtype: Any = None) -> ast.expr:
    """`jax.random.normal`."""
    return _draw("normal", out)


@op(
    "aten.rand.default",
    "aten.rand.generator",
    samples=(sample([2, 3], **_DRAWN), sample([2, 3], generator=None, **_DRAWN)),
)
def rand(*size: Any, out: Result, generator: Any = None, dtype: Any = None) -> ast.expr:
    """`jax.random.uniform`."""
    return _draw("uniform", out)


@op(
    "aten.randn_like.default",
    samples=(sample(real(2, 3), **_DRAWN), sample(real(2), dtype=torch.bfloat16, **_DRAWN)),
)
def randn_like(x: Any, out: Result, dtype: Any = None) -> ast.expr:
    """`jax.random.normal`."""
    return _draw("normal", out, like=x)


@op("aten.rand_like.default", samples=(sample(real(2, 3), **_DRAWN),))
def rand_like(x: Any, out: Result, dtype: Any = None) -> ast.expr:
    """`jax.random.uniform`."""
    return _draw("uniform", out, like=x)


@op(
    "aten.normal_functional.default",
    samples=(sample(real(2, 3), **_DRAWN), sample(real(2, 3), 1.5, 0.5, **_DRAWN)),
)
def normal_functional(
    x: Any, mean: float = 0.0, std: float = 1.0, *, out: Result, generator: Any = None
) -> ast.expr:
    """`jax.random.normal`, scaled and shifted."""
    return _scaled(_draw("normal", out, like=x), mean, std)


@op(
    "aten.normal.Tensor_Tensor",
    "aten.normal.Tensor_float",
    "aten.normal.float_Tensor",
    samples=(
        sample(real(2, 3), positive(2, 3), **_DRAWN),
        sample(real(2, 3), 0.5, **_DRAWN),
        sample(0.5, positive(2, 3), **_DRAWN),
    ),
)
def normal(mean: Any, std: Any = 1.0, generator: Any = None, *, out: Result) -> ast.expr:
    """`jax.random.normal`, scaled and shifted. Torch passes no gradient to mean and deviation."""
    like = mean if isinstance(mean, Tensor) and mean.shape == out.shape else None
    drawn = _draw("normal", out, like=like)
    return _scaled(drawn, *(_stopped(parameter) for parameter in (mean, std)))


@op("aten.normal.float_float", samples=(sample(0.5, 2.0, [2, 3], **_DRAWN),))
def normal_of_numbers(
    mean: float, std: float, size: Any, *, out: Result, generator: Any = None, dtype: Any = None
) -> ast.expr:
    """`jax.random.normal`, scaled and shifted."""
    return _scaled(_draw("normal", out), mean, std)


@op(
    "aten.uniform.default",
    samples=(sample(real(2, 3), **_DRAWN), sample(real(2, 3), -1.0, 2.0, **_DRAWN)),
)
def uniform(
    x: Any, low: float = 0.0, high: float = 1.0, *, out: Result, generator: Any = None
) -> ast.expr:
    """`jax.random.uniform`."""
    named = {} if (low, high) == (0, 1) else {"minval": low, "maxval": high}
    return _draw("uniform", out, like=x, **named)


@op("aten.log_normal.default", samples=(sample(real(2, 3), 0.5, 0.1, **_DRAWN),))
def log_normal(
    x: Any, mean: float = 1.0, std: float = 2.0, *, out: Result, generator: Any = None
) -> ast.expr:
    """The exponential of `jax.random.normal`, scaled and shifted."""
    return call("jnp.exp", _scaled(_draw("normal", out, like=x), mean, std))


@op(
    "aten.exponential.default",
    samples=(sample(real(2, 3), **_DRAWN), sample(real(2, 3), 2.5, **_DRAWN)),
)
def exponential(x: Any, lambd: float = 1.0, *, out: Result, generator: Any = None) -> ast.expr:
    """`jax.random.exponential`."""
    drawn = _draw("exponential", out, like=x)
    return drawn if lambd == 1 else code("{d} / {rate}", d=drawn, rate=lambd)


@op("aten.bernoulli.default", samples=(sample(within(0, 1, 2, 3), **_DRAWN),))
def bernoulli(x: Any, *, out: Result, generator: Any = None) -> ast.expr:
    """`jax.random.bernoulli`, as numbers."""
    return method(call("jax.random.bernoulli", _key(), x), "astype", out.dtype)


@op(
    "aten.bernoulli.p",
    "aten.bernoulli.Tensor",
    samples=(
        sample(real(2, 3), 0.3, **_DRAWN),
        sample(real(2, 3), within(0, 1, 2, 3), **_DRAWN),
    ),
)
def bernoulli_of(x: Any, p: Any, *, out: Result, generator: Any = None) -> ast.expr:
    """`jax.random.bernoulli`, as numbers."""
    plain = isinstance(x, Tensor) and isinstance(x.code, Hole)
    shape = _attribute(x, "shape") if plain else tuple(out.shape)
    return method(call("jax.random.bernoulli", _key(), p, shape), "astype", out.dtype)


def _integers(out: Result, low: Any, high: Any) -> ast.expr:
    """`jax.random.randint`, in the result's dtype."""
    drawn = call("jax.random.randint", _key(), tuple(out.shape), low, high)
    return drawn if out.dtype in (torch.int64, torch.int32) else method(drawn, "astype", out.dtype)


@op("aten.randint.default", samples=(sample(7, [2, 3], **_DRAWN),))
def randint(
    high: Any, size: Any, *, out: Result, dtype: Any = None, generator: Any = None
) -> ast.expr:
    """`jax.random.randint` from 0."""
    return _integers(out, 0, high)


@op(
    "aten.randint.low",
    samples=(
        sample(-2, 7, [2, 3], **_DRAWN),
        sample(-2, 7, [2, 3], dtype=torch.float32, **_DRAWN),
    ),
)
def randint_from(low: Any, high: Any, size: Any, *, out: Result, dtype: Any = None) -> ast.expr:
    """`jax.random.randint`."""
    return _integers(out, low, high)


@op(
    "aten.randint_like.default",
    samples=(sample(real(2, 3), 7, **_DRAWN),),
)
def randint_like(x: Any, high: Any, *, out: Result, dtype: Any = None) -> ast.expr:
    """`jax.random.randint` from 0."""
    return _integers(out, 0, high)


@op("aten.randint_like.low_dtype", samples=(sample(real(2, 3), -2, 7, **_DRAWN),))
def randint_like_from(x: Any, low: Any, high: Any, *, out: Result, dtype: Any = None) -> ast.expr:
    """`jax.random.randint`."""
    return _integers(out, low, high)


@op("aten.randperm.default", samples=(sample(5, **_DRAWN),))
def randperm(n: Any, *, out: Result, dtype: Any = None) -> ast.expr:
    """`jax.random.permutation`."""
    return call("jax.random.permutation", _key(), n)


@op(
    "aten.multinomial.default",
    samples=(
        sample(positive(5), 1, **_DRAWN),
        sample(positive(2, 5), 1, **_DRAWN),
        sample(positive(2, 5), 3, True, **_DRAWN),
        sample(positive(2, 5), 3, **_DRAWN),
    ),
)
def multinomial(
    x: Any, num_samples: Any, replacement: bool = False, *, out: Result, generator: Any = None
) -> ast.expr:
    """Indices drawn by their weights: `sample_indices`."""
    named = {"replacement": True} if replacement else {}
    return call("sample_indices", _key(), x, num_samples, **named)


@op(
    "aten.dropout.default",
    samples=(
        sample(real(2, 3), 0.5, False),
        sample(real(2, 3), 0.0, True),
        sample(real(2, 3), 0.5, True, **_DRAWN),
    ),
)
def dropout(x: Any, p: float, train: bool) -> ast.expr:
    """`dropout`; the tensor itself in evaluation."""
    if not train or p == 0:
        return code("{x}", x=x)
    return call("dropout", Hole(Rng(DROPOUT)), x, p)


@op(
    "aten.feature_dropout.default",
    samples=(
        sample(real(2, 3, 4), 0.5, False),
        sample(real(2, 3, 4), 0.5, True, **_DRAWN),
    ),
)
def feature_dropout(x: Any, p: float, train: bool) -> ast.expr:
    """`dropout` of whole channels; the tensor itself in evaluation."""
    if not train or p == 0:
        return code("{x}", x=x)
    return call("dropout", Hole(Rng(DROPOUT)), x, p, axes=(0, 1))


@op(
    "aten.native_dropout.default",
    samples=(sample(real(2, 3), 0.5, False), sample(real(2, 3), 0.5, True, **_DRAWN)),
)
def native_dropout(x: Any, p: float, train: bool | None) -> ast.expr:
    """Dropout together with its mask."""
    if not train:
        return code("({x}, jnp.ones_like({x}, dtype=jnp.bool_))", x=x)
    return call("dropout_and_mask", Hole(Rng(DROPOUT)), x, p)


@op(
    "aten.alpha_dropout.default",
    "aten.feature_alpha_dropout.default",
    samples=(sample(real(2, 3), 0.5, False),),
)
def alpha_dropout(x: Any, p: float, train: bool) -> ast.expr:
    """The tensor itself in evaluation."""
    demand(not train or p == 0, "alpha dropout draws random numbers in a way that JAX lacks")
    return code("{x}", x=x)
