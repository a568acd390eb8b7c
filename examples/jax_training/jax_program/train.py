"""The training of before.py in JAX.

python train.py [--updates N] [--checkpoints FOLDER [--every N]] [--save FILE]
"""

import argparse
import contextlib
import functools
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax
from checkpoints import Checkpoints
from devices import EVERYWHERE, by_rows, replicated
from flax.traverse_util import flatten_dict, unflatten_dict
from loss import loss_of
from optimizer import learning_rate_of, optimizer
from safetensors.flax import load_file, save_file

PARAMS = Path(__file__).with_name("params.safetensors")


class State(NamedTuple):
    """Trained parameters, other variables of the model, the optimizer's state, the number of updates."""

    params: Any
    variables: Any
    opt_state: Any
    step: int


def load(path=PARAMS):
    """A fresh state with the weights of a file."""
    variables = unflatten_dict(load_file(path), sep="/")
    params = variables.pop("params")
    return State(*replicated((params, variables, optimizer.init(params))), 0)


def save(state, path):
    """Write the weights of a state."""
    save_file(flatten_dict({"params": state.params, **state.variables}, sep="/"), path)


value_and_grad = jax.jit(jax.value_and_grad(loss_of), out_shardings=EVERYWHERE)


@functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=EVERYWHERE)
def apply(params, opt_state, grads):
    """One update of the weights."""
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def train_step(state, micro):
    """One update, of one batch.

    Returns:
        The new state, the loss, and the learning rate.
    """
    [batch] = micro
    value, grads = value_and_grad(state.params, state.variables, by_rows(batch))
    params, opt_state = apply(state.params, state.opt_state, grads)
    new = State(params, state.variables, opt_state, state.step + 1)
    return new, [value], learning_rate_of(state.step)


def main():
    """Train on the script's batches."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--updates", type=int, default=sys.maxsize, help="updates of the weights in all")
    add("--checkpoints", default=os.environ.get("CHECKPOINTS"), help="folder to resume from")
    add("--every", type=int, default=500, help="updates between two checkpoints; default: 500")
    add("--save", type=Path, help="file for the trained weights")
    asked = parser.parse_args()
    if asked.every < 1:
        parser.error(f"--every {asked.every}: at least 1")
    import data

    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # the first host prints

    kept = Checkpoints(asked.checkpoints, asked.every)
    with contextlib.redirect_stdout(None):  # what the updates print that are skipped
        state, rest = kept.resume(load(), data.batches())
    for micro in rest:
        if state.step >= asked.updates:
            break
        state, losses, rate = train_step(state, micro)
        data.UPDATE.update(loss=losses[-1])
        kept.store(state, micro)
    kept.close()
    if asked.save is not None and jax.process_index() == 0:
        save(state, asked.save)


if __name__ == "__main__":
    main()
