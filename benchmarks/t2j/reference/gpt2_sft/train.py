"""The training step, and a loop over it."""

import functools
from typing import Any, NamedTuple

import data
import jax
import jax.numpy as jnp
import loss as losses
import model as models
import optax
import optimizer as optimizers

CONFIG = {"n_layer": 2}
MODEL = models.GPT2LMHeadModel(CONFIG)
OPTIMIZER = optimizers.configure_optimizer(MODEL)
TOTAL = data.max_epochs * 24 // data.gradient_accumulation_steps


class State(NamedTuple):
    """Parameters, the optimizer's state and the number of updates."""

    params: Any
    opt_state: Any
    iter_num: int


def micro_loss(params, batch):
    """Loss of one backward of the script."""
    return losses.get_loss(MODEL, **batch, params=params) / data.gradient_accumulation_steps


value_and_grad = jax.jit(jax.value_and_grad(micro_loss))
logits = jax.jit(MODEL)


@functools.partial(jax.jit, donate_argnums=(1,))
def apply(params, opt_state, grads, rate):
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, jax.tree.map(lambda u: -rate * u, updates)), opt_state


def train_step(state, micro):
    """One update over some micro-batches; the gradients are summed, as torch does."""
    values, grads = [], None
    for batch in micro:
        value, more = value_and_grad(state.params, batch)
        values.append(value)
        grads = more if grads is None else jax.tree.map(jnp.add, grads, more)
    rate = optimizers.learning_rate * optimizers.lr_factor(state.iter_num, TOTAL)
    params, opt_state = apply(state.params, state.opt_state, grads, rate)
    return State(params, opt_state, state.iter_num + 1), values, rate


def main(params):
    state = State(params, OPTIMIZER.init(params), 0)
    for micro in data.steps():
        state, values, _ = train_step(state, micro)
        if state.iter_num % 4 == 1:
            print(f"iter {state.iter_num - 1}: loss {sum(map(float, values)):.4f}")
    return state
