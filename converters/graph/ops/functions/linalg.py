"""Source for ports: linear algebra that jax.numpy lacks."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def power_norm(
    x: jax.Array, order: float, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> jax.Array:
    """`jnp.linalg.vector_norm`, with torch's gradient at elements and norms that are 0: 0, not NaN."""
    zero = x == 0
    powers = jnp.where(zero, 0 if order > 0 else jnp.inf, jnp.abs(jnp.where(zero, 1, x)) ** order)
    total = powers.sum(axis=axis, keepdims=keepdims)
    none = total == 0
    return jnp.where(none, 0, jnp.where(none, 1, total) ** (1 / order))


def log_determinant(x: jax.Array) -> jax.Array:
    """The logarithm of the determinant; NaN where that is negative."""
    sign, size = jnp.linalg.slogdet(x)
    return jnp.where(sign < 0, jnp.nan, size)


def householder_product(x: jax.Array, tau: jax.Array) -> jax.Array:
    """The first columns of the product of Householder reflections, `torch.linalg.householder_product`.

    The product of I - tau_k v_k v_kᵀ is I - V T Vᵀ with T⁻¹ = diag(1 / tau) + striu(Vᵀ V), where V has ones
    on its diagonal and `x` below it (Joffrain et al. 2006, "Accumulating Householder transformations,
    revisited"). A tau may be zero; `jax.lax.linalg.householder_product` has no gradient.

    Args:
        x: (…, m, n) with m ≥ n.
        tau: (…, k) with k ≤ n.
    """
    rows, columns = x.shape[-2:]
    count = tau.shape[-1]
    v = jnp.tril(x[..., :count], -1) + jnp.eye(rows, count, dtype=x.dtype)
    scaled = tau[..., None] * v.mT
    triangle = jnp.eye(count, dtype=x.dtype) + jnp.triu(scaled @ v, 1)
    solved = jax.scipy.linalg.solve_triangular(triangle, scaled, lower=False)
    return jnp.eye(rows, columns, dtype=x.dtype) - v @ solved[..., :columns]


def matrix_exponential(x: jax.Array) -> jax.Array:
    """`jax.scipy.linalg.expm`, computed in float32 at least; its solver takes no bfloat16."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jax.scipy.linalg.expm(x.astype(wide)).astype(x.dtype)
