"""Arrays of a new model that come from a file, for `migrate port`."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
from flax import nnx
from safetensors.numpy import load_file


def set_initial(model: nnx.Module) -> None:
    """Set the arrays that the original computes; initial.safetensors has them for this size."""
    state = nnx.to_flat_state(nnx.state(model))
    variables = {"/".join(map(str, path)): (path, variable) for path, variable in state}
    for key, array in load_file(Path(__file__).with_name("initial.safetensors")).items():
        path, variable = variables[key]
        if array.shape != variable.shape:
            raise ValueError(
                f"{key}: has {array.shape} in initial.safetensors; {variable.shape} is needed"
            )
        new = variable.replace(jnp.asarray(array, variable.dtype))
        nnx.update(model, nnx.from_flat_state([(path, new)]))
