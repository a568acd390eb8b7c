"""Run the ports in a folder with the JAX and Flax of this interpreter; print how far they are from torch.

It runs where neither torch nor this project is: `python newer_jax_port.py FOLDER`. Each port is a package
with `modeling.py` and `config.py`, and beside it `NAME.safetensors`, `NAME.inputs.safetensors` and
`NAME.outputs.safetensors`.
"""

import importlib
import json
import sys
from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file


def nested(arrays):
    tree = {}
    for path, array in arrays.items():
        *above, name = path.split("/")
        node = tree
        for step in above:
            node = node.setdefault(step, {})
        node[name] = jnp.asarray(array)
    return tree


def apart(folder, name, facts):
    """Relative L2 of the outputs, and of the norm of all gradients."""
    modeling = importlib.import_module(f"{name}.modeling")
    config = importlib.import_module(f"{name}.config")
    model = getattr(modeling, facts["model"])(getattr(config, facts["config"])())
    weights = nested(load_file(folder / f"{name}.safetensors"))
    inputs = load_file(folder / f"{name}.inputs.safetensors")
    expected = load_file(folder / f"{name}.outputs.safetensors")
    jax.jit(model.init)(jax.random.key(0), **inputs)

    def outputs(params):
        found = model.apply({**weights, "params": params}, **inputs)
        return jax.tree.leaves(found)

    def loss(params):
        return sum(
            (one * jnp.arange(1.0, 1 + one.size).reshape(one.shape) / one.size).sum()
            for one in outputs(params)
            if jnp.issubdtype(one.dtype, jnp.floating)
        )

    found = jax.jit(outputs)(weights["params"])
    distance = max(
        float(np.linalg.norm(np.asarray(one) - expected[f"{place}"]))
        / float(np.linalg.norm(expected[f"{place}"]))
        for place, one in enumerate(found)
    )
    gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(weights["params"]))
    norm = float(np.sqrt(sum(float(jnp.square(one).sum()) for one in gradients)))
    return {"outputs": distance, "gradients": abs(norm - facts["norm"]) / facts["norm"]}


def main():
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    facts = json.loads((folder / "facts.json").read_text())
    with jax.default_matmul_precision("highest"):
        found = {name: apart(folder, name, one) for name, one in facts.items()}
    json.dump({"jax": jax.__version__, "flax": flax.__version__, "ports": found}, sys.stdout)


main()
