"""The source's public names over this program's, and the functions that the judge calls."""

import jax.numpy as jnp
import numpy as np
import train
from data import Sums, collate, steps
from loss import get_loss
from model import GPT2LMHeadModel
from optimizer import configure_optimizer, lr_factor

__all__ = ["GPT2LMHeadModel", "Sums", "collate", "configure_optimizer", "get_loss", "lr_factor"]


def load(weights):
    named = weights["model"]
    skipped = (".attn.bias", ".attn.masked_bias", "lm_head.weight")
    params = {n: jnp.asarray(x) for n, x in named.items() if not n.endswith(skipped)}
    return train.State(params, train.OPTIMIZER.init(params), 0)


def weights(state):
    return {"model": {name: np.asarray(x) for name, x in state.params.items()}}


def outputs(state, batch, site=0):
    return [train.logits(batch["x"], batch["mask"], state.params)]


def loss_and_gradients(state, batch, site=0):
    loss, grads = train.value_and_grad(state.params, batch)
    return loss, {"model": {name: np.asarray(g) for name, g in grads.items()}}


def step(state, micro, site=0, rollout=None):
    state, losses, rate = train.train_step(state, micro)
    return state, {"losses": losses, "learning_rate": rate}


def batches():
    return steps()
