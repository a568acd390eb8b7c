"""The training of before.py in JAX.

python train.py [--updates N] [--checkpoints FOLDER [--every N]] [--save FILE]
"""

import argparse
import functools
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from devices import EVERYWHERE, by_rows, replicated
from loss import inputs_of, loss_of
from optimizer import learning_rate_of, optimizer
from safetensors.numpy import load_file, save_file

PARAMS = Path(__file__).with_name("params.safetensors")


class State(NamedTuple):
    """Trained parameters, other variables of the model, the optimizer's state, the number of updates."""

    params: Any
    variables: Any
    opt_state: Any
    step: int


def load(path=PARAMS):
    """A fresh state with the weights of a file."""
    tree = {}
    for name, value in load_file(path).items():
        *above, last = name.split("/")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[last] = jnp.asarray(value)
    return start(tree)


def start(variables):
    """A fresh state with these variables."""
    params = variables["params"]
    others = {name: value for name, value in variables.items() if name != "params"}
    return State(*replicated((params, others, optimizer.init(params))), 0)


def save(state, path):
    """Write the weights of a state."""
    tree = {"params": state.params, **state.variables}
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    save_file({"/".join(key.key for key in path): np.asarray(x) for path, x in leaves}, path)


value_and_grad = jax.jit(jax.value_and_grad(loss_of), out_shardings=EVERYWHERE)


@functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=EVERYWHERE)
def apply(params, opt_state, grads):
    """One update of the weights."""
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def train_step(state, micro):
    """One update over micro-batches, whose gradients are summed as torch sums them.

    Returns:
        The new state, the loss of each micro-batch, and the learning rate.
    """
    losses, grads, variables = [], None, state.variables
    for batch in micro:
        inputs = by_rows(inputs_of(batch))
        value, more = value_and_grad(state.params, variables, inputs)
        losses.append(value)
        grads = more if grads is None else jax.tree.map(jnp.add, grads, more)
    params, opt_state = apply(state.params, state.opt_state, grads)
    new = State(params, variables, opt_state, state.step + 1)
    return new, losses, learning_rate_of(state.step)


def main():
    """Train on the script's batches."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--updates", type=int, default=sys.maxsize, help="updates of the weights in all")
    folder = os.environ.get("CHECKPOINTS")
    add("--checkpoints", default=folder, help="folder to store the state in, and to resume from")
    add("--every", type=int, default=500, help="updates between two checkpoints; default: 500")
    add("--save", type=Path, help="file for the trained weights")
    asked = parser.parse_args()
    if asked.every < 1:
        parser.error(f"--every {asked.every}: at least 1")
    from checkpoints import PREEMPTED, Checkpoints
    from data import batches

    kept, pending = Checkpoints(asked.checkpoints, asked.every), None
    state, rest = kept.resume(load(), batches())
    for micro in rest:
        if state.step >= asked.updates:
            break
        number = state.step
        state, losses, rate = train_step(state, micro)
        if pending is not None:
            report(*pending)  # read one update late: the device need not wait
        pending = number, losses, rate
        if kept.ends(state, micro):
            break
    if pending is not None:
        report(*pending)
    kept.close()
    if kept.preempted:
        sys.exit(PREEMPTED)
    if asked.save is not None and jax.process_index() == 0:
        save(state, asked.save)


def report(number, losses, rate):
    """Print one update, on the first host."""
    if jax.process_index() == 0:
        loss = sum(float(x) for x in losses)
        print(f"update {number}: loss {loss:.6f}, learning rate {float(rate):.3e}", flush=True)


if __name__ == "__main__":
    main()
