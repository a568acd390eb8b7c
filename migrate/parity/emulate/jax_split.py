"""Rounding of JAX float32 arrays to bfloat16."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

_UPPER = 0xFFFF0000


class JaxSplit:
    """Roundings of `passes.Split` for JAX.

    They do not cast to bfloat16 and back: XLA may remove such casts (`xla_allow_excess_precision`), but
    never `reduce_precision`.
    """

    def nearest(self, array: Any) -> Any:
        """Round to nearest, ties to even."""
        return lax.reduce_precision(array, exponent_bits=8, mantissa_bits=7)

    def truncated(self, array: Any) -> Any:
        """Round toward zero."""
        bits = lax.bitcast_convert_type(array, jnp.uint32) & jnp.uint32(_UPPER)
        return lax.bitcast_convert_type(bits, jnp.float32)

    def rest(self, array: Any, part: Any) -> Any:
        """Remainder without the part; 0 where the array is not finite."""
        return jnp.where(jnp.isfinite(array), array - part, jnp.float32(0))

    def numbers(self, array: Any) -> Any:
        """Replace NaN by 0."""
        return jnp.where(jnp.isnan(array), jnp.float32(0), array)
