"""Functions of a port on layers of Flax, and layers that round once in 16 bits, as torch's kernels do."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


def weights_of(layer: Any, *shape: int) -> Any:
    """The parameters of a layer that is not called here: `init` makes them by a call of this shape."""
    if layer.is_initializing() and "params" not in layer.variables:
        layer(jnp.zeros(shape))
    return layer.variables["params"]


def rounded_once(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The function computed in float32, with a result in the dtype of its argument."""

    @wraps(function)
    def apply(x: jax.Array, *args: Any, **named: Any) -> jax.Array:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return function(wide, *args, **named).astype(x.dtype)

    return apply


def wide_product(product: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The product of a layer in float32, to which the layer adds its bias."""

    def apply(x: jax.Array, kernel: jax.Array, *args: Any, **named: Any) -> jax.Array:
        wide = jnp.promote_types(x.dtype, jnp.float32)
        return product(x, kernel, *args, preferred_element_type=wide, **named)

    return apply


class DenseRoundedOnce(nn.Dense):
    """A dense layer that adds its bias before it rounds the product."""

    dot_general: Any = wide_product(jax.lax.dot_general)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Apply the layer; the result has the dtype of the computation."""
        outputs = super().__call__(inputs)
        kernel = self.get_variable("params", "kernel")
        return outputs.astype(self.dtype or jnp.result_type(inputs, kernel))


class ConvRoundedOnce(nn.Conv):
    """A convolution that adds its bias before it rounds the product."""

    conv_general_dilated: Any = wide_product(jax.lax.conv_general_dilated)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Apply the layer; the result has the dtype of the computation."""
        outputs = super().__call__(inputs)
        kernel = self.get_variable("params", "kernel")
        return outputs.astype(self.dtype or jnp.result_type(inputs, kernel))
