"""Losses."""

from __future__ import annotations

import ast
from typing import Any

from converters.graph.expression import call, code, method
from converters.graph.ops.parts import demand
from converters.graph.ops.registry import integers, op, positive, real, sample, values, within

_REDUCED = (None, "mean", "sum")


def _reduced(value: ast.expr, reduction: int) -> ast.expr:
    how = _REDUCED[reduction]
    return value if how is None else method(value, how)


def _cases(*arguments: Any) -> tuple[Any, ...]:
    return tuple(sample(*arguments, reduction) for reduction in (0, 1, 2))


@op("aten.mse_loss.default", samples=_cases(real(2, 3), real(2, 3)))
def mse_loss(x: Any, target: Any, reduction: int = 1) -> ast.expr:
    """The squared difference."""
    return _reduced(call("jnp.square", code("{x} - {y}", x=x, y=target)), reduction)


@op("aten.l1_loss.default", samples=_cases(real(2, 3), real(2, 3)))
def l1_loss(x: Any, target: Any, reduction: int = 1) -> ast.expr:
    """The absolute difference."""
    return _reduced(call("absolute", code("{x} - {y}", x=x, y=target)), reduction)


@op(
    "aten.smooth_l1_loss.default",
    samples=(*_cases(real(2, 3), real(2, 3)), sample(real(5), real(5), 1, 0.5)),
)
def smooth_l1_loss(x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> ast.expr:
    """The squared difference where it is small, else the absolute difference."""
    if beta == 0:
        return l1_loss(x, target, reduction)
    away = call("jnp.abs", code("{x} - {y}", x=x, y=target))
    losses = code(
        "jnp.where({d} < {beta}, 0.5 * {d} ** 2 / {beta}, {d} - 0.5 * {beta})", d=away, beta=beta
    )
    return _reduced(losses, reduction)


@op(
    "aten.huber_loss.default",
    samples=(*_cases(real(2, 3), real(2, 3)), sample(real(5), real(5), 1, 0.5)),
)
def huber_loss(x: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> ast.expr:
    """The squared difference where it is small, else the absolute difference."""
    away = call("jnp.abs", code("{x} - {y}", x=x, y=target))
    losses = code(
        "jnp.where({d} < {delta}, 0.5 * {d} ** 2, {delta} * ({d} - 0.5 * {delta}))",
        d=away,
        delta=delta,
    )
    return _reduced(losses, reduction)


@op(
    "aten.binary_cross_entropy_with_logits.default",
    samples=(
        sample(real(2, 3), within(0, 1, 2, 3)),
        sample(real(2, 3), within(0, 1, 2, 3), None, positive(3), 0),
    ),
)
def bce_with_logits(
    x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> ast.expr:
    """The binary cross entropy of logits."""
    yes = code("{y} * jax.nn.log_sigmoid({x})", x=x, y=target)
    if pos_weight is not None:
        yes = code("{w} * {yes}", w=pos_weight, yes=yes)
    losses = code("-({yes} + (1 - {y}) * jax.nn.log_sigmoid(-{x}))", x=x, y=target, yes=yes)
    return _reduced(losses if weight is None else code("{w} * {m}", w=weight, m=losses), reduction)


@op(
    "aten.binary_cross_entropy.default",
    samples=(
        sample(within(0.1, 0.9, 2, 3), within(0, 1, 2, 3)),
        sample(within(0.1, 0.9, 2, 3), within(0, 1, 2, 3), positive(3), 0),
        sample(
            values([0.0, 1.0]), values([1.0, 0.0]), gradient=False, why="infinite by the target"
        ),
    ),
)
def bce(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> ast.expr:
    """The binary cross entropy of probabilities, whose logarithms are at least -100."""
    losses = call("binary_cross_entropy", x, target)
    return _reduced(losses if weight is None else code("{w} * {m}", w=weight, m=losses), reduction)


@op("aten.soft_margin_loss.default", samples=_cases(real(2, 3), values([1.0, -1.0, 1.0])))
def soft_margin_loss(x: Any, target: Any, reduction: int = 1) -> ast.expr:
    """`log(1 + exp(-target * x))`."""
    return _reduced(code("jax.nn.softplus(-{y} * {x})", x=x, y=target), reduction)


@op("aten.kl_div.default", samples=_cases(real(2, 3), positive(2, 3)))
def kl_div(x: Any, target: Any, reduction: int = 1, *, log_target: bool = False) -> ast.expr:
    """The Kullback-Leibler divergence, with log probabilities as input."""
    if log_target:
        return _reduced(code("jnp.exp({y}) * ({y} - {x})", x=x, y=target), reduction)
    return _reduced(code("jax.scipy.special.xlogy({y}, {y}) - {y} * {x}", x=x, y=target), reduction)


@op(
    "aten.cross_entropy_loss.default",
    samples=(
        sample(real(4, 5), integers(4, high=5)),
        sample(real(4, 5), integers(4, high=5), None, 0),
        sample(real(2, 5, 3), integers(2, 3, high=5), None, 2, 1, 0.1),
        sample(real(4, 5), integers(4, high=5), None, 1, 2),
        sample(real(4, 5), within(0, 1, 4, 5)),
    ),
)
def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: Any = -100,
    label_smoothing: float = 0.0,
) -> ast.expr:
    """The cross entropy of logits with classes or probabilities."""
    demand(weight is None, "a cross entropy with weights of classes")
    demand(x.ndim > 1, "a cross entropy of a single example")
    if target.dtype.is_floating_point:
        demand(label_smoothing == 0, "smoothed probabilities")
        losses = code("-({y} * jax.nn.log_softmax({x}, axis=1)).sum(axis=1)", x=x, y=target)
        if reduction == 1 and x.ndim > 2:
            return method(losses, "mean")
        return _reduced(losses, reduction)
    named: dict[str, Any] = {} if reduction == 1 else {"reduction": _REDUCED[reduction]}
    named |= {} if ignore_index == -100 else {"ignore": ignore_index}
    named |= {"smoothing": label_smoothing} if label_smoothing else {}
    return call("cross_entropy", x, target, **named)


@op(
    "aten.nll_loss.default",
    "aten.nll_loss_nd.default",
    samples=(
        sample(real(4, 5), integers(4, high=5)),
        sample(real(4, 5), integers(4, high=5), None, 0),
        sample(real(4, 5), integers(4, high=5), None, 1, 2),
    ),
)
def nll_loss(
    x: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: Any = -100
) -> ast.expr:
    """Minus the log probability of the target class."""
    demand(weight is None, "a loss with weights of classes")
    demand(x.ndim > 1, "a loss of a single example")
    named: dict[str, Any] = {} if reduction == 1 else {"reduction": _REDUCED[reduction]}
    named |= {} if ignore_index == -100 else {"ignore": ignore_index}
    return call("right_class_loss", x, target, **named)
