"""Arrays of an nnx module that are no parameters, as torch's buffers."""

from __future__ import annotations

from flax import nnx
from jax import Array


class Buffer(nnx.Variable[Array]):
    """An array that is not trained."""
