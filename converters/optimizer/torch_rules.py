"""Update rules of torch optimizers that optax computes differently.

Each function stands by itself, with the state above it: `migrate train` copies them into the programs that
it writes. All return the update before the learning rate.
No two arrays of a state are one buffer: programs donate the state.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class AmsgradState(NamedTuple):
    """Number of steps, moments, and the largest second moments so far."""

    count: Any
    mu: Any
    nu: Any
    nu_max: Any


def scale_by_amsgrad(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam with the largest second moment so far; torch corrects its bias after the maximum."""

    def init(params: Any) -> AmsgradState:
        mu, nu, nu_max = (jax.tree.map(jnp.zeros_like, params) for _ in range(3))
        return AmsgradState(jnp.zeros([], jnp.int32), mu, nu, nu_max)

    def update(grads: Any, state: AmsgradState, params: Any = None) -> tuple[Any, AmsgradState]:
        del params
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        nu_max = jax.tree.map(jnp.maximum, state.nu_max, nu)
        correct1, correct2 = 1 - b1**count, 1 - b2**count

        def step(m: Any, v: Any) -> Any:
            return m / correct1 / (jnp.sqrt(v) / jnp.sqrt(correct2) + eps)

        return jax.tree.map(step, mu, nu_max), AmsgradState(count, mu, nu, nu_max)

    return optax.GradientTransformation(init, update)


class DampedTraceState(NamedTuple):
    """Number of steps, and the momentum."""

    count: Any
    trace: Any


def damped_trace(momentum: float, dampening: float) -> optax.GradientTransformation:
    """Momentum with dampening; torch leaves the first gradient undamped."""

    def init(params: Any) -> DampedTraceState:
        return DampedTraceState(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(
        grads: Any, state: DampedTraceState, params: Any = None
    ) -> tuple[Any, DampedTraceState]:
        del params
        weight = jnp.where(state.count == 0, 1.0, 1.0 - dampening)
        trace = jax.tree.map(
            lambda t, g: momentum * t + weight.astype(g.dtype) * g, state.trace, grads
        )
        return trace, DampedTraceState(state.count + 1, trace)

    return optax.GradientTransformation(init, update)


class AdagradState(NamedTuple):
    """Number of steps, and the sum of squares."""

    count: Any
    sum_of_squares: Any


def scale_by_adagrad(
    eps: float, initial_accumulator_value: float = 0.0, lr_decay: float = 0.0
) -> optax.GradientTransformation:
    """Adagrad with `eps` outside of the root, and torch's decay of the learning rate."""

    def init(params: Any) -> AdagradState:
        start = jax.tree.map(lambda p: jnp.full_like(p, initial_accumulator_value), params)
        return AdagradState(jnp.zeros([], jnp.int32), start)

    def update(grads: Any, state: AdagradState, params: Any = None) -> tuple[Any, AdagradState]:
        del params
        total = jax.tree.map(lambda s, g: s + g * g, state.sum_of_squares, grads)
        slower = 1 + state.count * lr_decay
        updates = jax.tree.map(lambda g, s: g / (jnp.sqrt(s) + eps) / slower, grads, total)
        return updates, AdagradState(state.count + 1, total)

    return optax.GradientTransformation(init, update)


class NadamState(NamedTuple):
    """Number of steps, the product of the momenta so far, and moments."""

    count: Any
    product: Any
    mu: Any
    nu: Any


def scale_by_nadam(
    b1: float, b2: float, eps: float, momentum_decay: float
) -> optax.GradientTransformation:
    """NAdam with torch's schedule of the momentum (Dozat's, from `b1 / 2` up to `b1`)."""

    def init(params: Any) -> NadamState:
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return NadamState(jnp.zeros([], jnp.int32), jnp.ones([]), mu, nu)

    def momentum(count: Any) -> Any:
        return b1 * (1 - 0.5 * 0.96 ** (count * momentum_decay))

    def update(grads: Any, state: NadamState, params: Any = None) -> tuple[Any, NadamState]:
        del params
        count = state.count + 1
        now, then = momentum(count), momentum(count + 1)
        product = state.product * now
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        of_gradient, of_mean = (1 - now) / (1 - product), then / (1 - product * then)

        def step(g: Any, m: Any, v: Any) -> Any:
            denominator = jnp.sqrt(v / (1 - b2**count)) + eps
            return ((of_gradient * g + of_mean * m) / denominator).astype(g.dtype)

        return jax.tree.map(step, grads, mu, nu), NadamState(count, product, mu, nu)

    return optax.GradientTransformation(init, update)


class RadamState(NamedTuple):
    """Number of steps, and moments."""

    count: Any
    mu: Any
    nu: Any


def scale_by_radam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """RAdam with `eps` beside the uncorrected second moment, as in torch."""
    longest, slow = 2 / (1 - b2) - 1, -math.log(max(b2, 1e-30))

    def init(params: Any) -> RadamState:
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return RadamState(jnp.zeros([], jnp.int32), mu, nu)

    def update(grads: Any, state: RadamState, params: Any = None) -> tuple[Any, RadamState]:
        del params
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        # 1 - b2**count and the length of the average, without differences of near numbers.
        decay = slow * count
        correct1, correct2 = 1 - b1**count, -jnp.expm1(-decay)
        few = longest - 2 / slow + count * (1 - decay / 6 + decay**3 / 360)
        length = jnp.where(decay < 0.1, few, longest - 2 * count / jnp.expm1(decay))
        ratio = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        rectified = length > 5
        scale = jnp.sqrt(jnp.where(rectified, ratio, 1.0) * correct2)

        def step(m: Any, v: Any) -> Any:
            adaptive = jnp.where(rectified, scale / (jnp.sqrt(v) + eps), 1.0)
            return (m / correct1 * adaptive).astype(m.dtype)

        return jax.tree.map(step, mu, nu), RadamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def clip_by_norm(limit: float, order: float = 2.0) -> optax.GradientTransformation:
    """Clipping by the norm of all gradients together, with the 1e-6 that torch adds to it."""

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        leaves = [jnp.abs(g).ravel() for g in jax.tree.leaves(grads)]
        norm = jnp.linalg.norm(jnp.concatenate(leaves), order)
        scale = jnp.minimum(1.0, limit / (norm + 1e-6))
        return jax.tree.map(lambda g: (g * scale).astype(g.dtype), grads), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
