"""Writing of new keys and values into a cache."""

from __future__ import annotations

import ast
from typing import Any

import converters.graph.caches  # noqa: F401  (registers the operator)
from converters.graph.expression import call
from converters.graph.ops.registry import op, real, sample, values

_WHY = "caches are for evaluation: the operator has no gradient in torch"


@op(
    "tpu_migrate.write_cache.default",
    samples=(
        sample(
            real(2, 3, 8, 4),
            real(2, 3, 2, 4),
            values(5),
            gradient=False,
            why=_WHY,
        ),
        sample(real(2, 8, 4), real(2, 1, 4), values(0), gradient=False, why=_WHY),
    ),
)
def _write_cache(cache: Any, new: Any, index: Any) -> ast.expr:
    """`jax.lax.dynamic_update_slice_in_dim(cache, new, index, axis=2)`."""
    axis = cache.ndim - 2
    return call("jax.lax.dynamic_update_slice_in_dim", cache, new, index, axis=axis)
