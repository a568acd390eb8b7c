"""AdamW with decay of matrices only, clipping, warm-up and cosine."""

import math

import jax
import optax

learning_rate, min_lr = 3e-3, 3e-4
weight_decay, beta1, beta2 = 0.1, 0.9, 0.95
grad_clip, warmup_iters = 0.25, 5


def lr_factor(it, total):
    if it < warmup_iters:
        return (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / max(1, total - warmup_iters)
    floor = min_lr / learning_rate
    return floor + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (1.0 - floor)


def decay_mask(params):
    return jax.tree.map(lambda p: p.ndim >= 2, params)


def configure_optimizer(model):
    """The update without the learning rate, which `step` gives."""
    return optax.chain(
        optax.clip_by_global_norm(grad_clip),
        optax.scale_by_adam(b1=beta1, b2=beta2, eps=1e-8),
        optax.add_decayed_weights(weight_decay, decay_mask),
    )
