"""float32 arrays of JAX rounded to bfloat16."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

_UPPER = 0xFFFF0000


class JaxSplit:
    """The roundings of `passes.Split` for JAX.

    Not by a cast there and back: XLA may leave that out (`xla_allow_excess_precision`), never
    `reduce_precision`.
    """

    def nearest(self, array: Any) -> Any:
        """To the nearest, ties to even."""
        return lax.reduce_precision(array, exponent_bits=8, mantissa_bits=7)

    def truncated(self, array: Any) -> Any:
        """Towards zero."""
        bits = lax.bitcast_convert_type(array, jnp.uint32) & jnp.uint32(_UPPER)
        return lax.bitcast_convert_type(bits, jnp.float32)

    def rest(self, array: Any, part: Any) -> Any:
        """What the part leaves; 0 of what is not finite."""
        return jnp.where(jnp.isfinite(array), array - part, jnp.float32(0))

    def numbers(self, array: Any) -> Any:
        """0 where it is NaN."""
        return jnp.where(jnp.isnan(array), jnp.float32(0), array)
