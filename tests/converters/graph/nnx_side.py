"""A port in Flax NNX: its model with the weights of the original."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from safetensors.numpy import save_file

from converters import convert_to_pytree
from converters.checkpoint import flatten
from converters.graph import Port
from tests.converters.graph.flax_side import Inputs


def loaded(written: Port, folder: Path, *, seed: int = 0, **sizes: Any) -> Any:
    """The model, new, imported as its folder would be."""
    name = f"nnx_port_{len([one for one in sys.modules if one.startswith('nnx_port_')])}"
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "modeling.py").write_text(written.modeling)
    (package / "config.py").write_text(written.config)
    if written.initial:
        save_file(dict(written.initial), package / "initial.safetensors")
    sys.path.insert(0, str(folder))
    try:
        modeling = importlib.import_module(f"{name}.modeling")
        config = importlib.import_module(f"{name}.config")
    finally:
        sys.path.remove(str(folder))
    settings = getattr(config, written.config_class)(**sizes)
    return getattr(modeling, written.model_class)(settings, rngs=nnx.Rngs(seed))


def variables(model: Any) -> dict[str, Any]:
    """Path → variable of all that a file of weights has."""
    state = nnx.state(model, nnx.All(nnx.Variable, nnx.Not(nnx.RngState)))
    return {"/".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}


def with_weights(model: Any, original: torch.nn.Module, written: Port, inputs: Inputs) -> Any:
    """The model with the weights of the original, under the names of `migrate weights --to nnx`."""
    example = [tuple(one.shape) for one in inputs.values()]
    tree = convert_to_pytree(
        original.state_dict(), model=original, example=example, keep_parts=True, to="nnx"
    )
    arrays = {**flatten(tree), **written.constants}
    own = {
        "/".join(map(str, path)): (path, variable)
        for path, variable in nnx.to_flat_state(nnx.state(model))
        if isinstance(variable, nnx.Variable) and not isinstance(variable, nnx.RngState)
    }
    assert own.keys() <= arrays.keys()  # a file may have what the forward does not read
    state = [
        (path, variable.replace(jnp.asarray(np.asarray(arrays[name]))))
        for name, (path, variable) in own.items()
    ]
    for name, (_, variable) in own.items():
        assert variable.shape == np.shape(arrays[name]), name
    nnx.update(model, nnx.from_flat_state(state))
    model.eval()
    return model
