"""Functions of a port on layers of Flax."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def weights_of(layer: Any, *shape: int) -> Any:
    """The parameters of a layer that is not called here: `init` makes them by a call of this shape."""
    if layer.is_initializing() and "params" not in layer.variables:
        layer(jnp.zeros(shape))
    return layer.variables["params"]
