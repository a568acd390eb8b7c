"""The weights of the torch model in the port, and the outputs of both, without the engine of parity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from converters import convert_to_pytree
from converters.checkpoint import flatten, nest
from tests.parity.pairs.pair import Array, Fault, Pair


def port_weights(
    pair: Pair, model: torch.nn.Module, port: Any, folder: Path, fault: Fault | None = None
) -> dict[str, Array]:
    """Path → array for the port, by `converters`, spoilt where the fault says so."""
    if pair.kind == "torch":
        return {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    api = "nnx" if pair.kind == "nnx" else "linen"
    options = dict(pair.options)
    if pair.fitted:
        options["target"] = str(_shapes(pair, port, folder))
    tree = convert_to_pytree(model.state_dict(), model=model, to=api, **options)
    weights = {path: np.asarray(array) for path, array in flatten(tree).items()}
    if fault is not None and fault.spoil is not None:
        fault.spoil(weights)
    return weights


def _shapes(pair: Pair, port: Any, folder: Path) -> Path:
    import jax

    inputs = pair.inputs(np.random.default_rng(0))
    shapes = jax.eval_shape(port.init, jax.random.key(0), **port_inputs(pair, inputs))
    text = {path: [leaf.shape, leaf.dtype.name] for path, leaf in flatten(shapes).items()}
    path = folder / f"{pair.name}.json"
    path.write_text(json.dumps(text))
    return path


def port_inputs(pair: Pair, inputs: dict[str, Array]) -> dict[str, Array]:
    """As the port takes them."""
    return {
        name: np.moveaxis(array, 1, -1) if name in pair.channels_last else array
        for name, array in inputs.items()
    }


def torch_outputs(model: torch.nn.Module, inputs: dict[str, Array]) -> list[Array]:
    """In the dtype of the model's parameters."""
    dtype = next(model.parameters()).dtype
    given = {}
    for name, array in inputs.items():
        tensor = torch.from_numpy(array)
        if tensor.is_floating_point():
            given[name] = tensor.to(dtype)
        else:
            given[name] = tensor.long() if tensor.dtype == torch.int32 else tensor
    with torch.no_grad():
        return _arrays(model(**given))


def port_outputs(
    pair: Pair, port: Any, weights: dict[str, Array], inputs: dict[str, Array], wide: bool
) -> list[Array]:
    """Of the port; in float64 if `wide`."""
    if pair.kind == "torch":
        port.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        return torch_outputs(port.eval(), inputs)
    import jax
    from flax import nnx

    def cast(array: Array) -> Array:
        floats = wide and np.issubdtype(array.dtype, np.floating)
        return array.astype(np.float64) if floats else array

    with jax.enable_x64(wide), jax.default_matmul_precision("highest"):
        tree: Any = nest((path, cast(array)) for path, array in weights.items())
        given = {name: cast(array) for name, array in port_inputs(pair, inputs).items()}
        given = {name: jax.numpy.asarray(array) for name, array in given.items()}
        if pair.kind == "linen":

            def apply(tree: Any, given: Any) -> Any:
                return port.apply(tree, **given, mutable=["batch_stats"])[0]

            found = jax.jit(apply)(tree, given)
        elif pair.kind == "jax":
            found = jax.jit(port)(tree["params"], *given.values())
        else:
            graph, state = nnx.split(port)
            tree = nnx.restore_int_paths(jax.tree.map(jax.numpy.asarray, tree))
            nnx.replace_by_pure_dict(state, tree)
            found = jax.jit(lambda state, given: nnx.merge(graph, state)(**given))(state, given)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(found)]


def _arrays(found: Any) -> list[Array]:
    if isinstance(found, torch.Tensor):
        return [found.numpy()]
    return [array for one in found for array in _arrays(one)]
