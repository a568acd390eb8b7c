"""The script's loss: dynamic fine-tuning."""

import jax
import jax.numpy as jnp


def get_loss(model, x, y, mask, params=None):
    """Dynamic fine-tuning: each token's loss times its own probability, held constant."""
    logits = model(x, mask, params)
    logits, targets = logits[:, :-1], y[:, 1:]
    learned = targets != -100
    logps = jax.nn.log_softmax(logits, axis=-1)
    nll = -jnp.take_along_axis(logps, jnp.where(learned, targets, 0)[..., None], axis=-1)[..., 0]
    nll = jnp.where(learned, nll, 0.0)
    weighted = nll * jax.lax.stop_gradient(jnp.exp(-nll))
    return weighted.sum() / learned.sum()
