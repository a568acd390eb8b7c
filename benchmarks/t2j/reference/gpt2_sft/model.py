"""GPT-2 in plain JAX. Parameters are a flat dictionary with torch's names and layouts."""

import jax
import jax.numpy as jnp

N_HEAD, EPS = 4, 1e-5


class GPT2LMHeadModel:
    """A GPT-2 with a language modelling head, tied to the token embedding.

    Attributes:
        config: the vocabulary's size, width, number of layers.
        params: the parameters; a call may take others.
    """

    def __init__(self, config, params=None):
        self.config, self.params = config, params

    def __call__(self, input_ids, attention_mask, params=None):
        params = self.params if params is None else params
        return forward(params, input_ids, attention_mask, self.config["n_layer"])


def layer_norm(p, name, x):
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + EPS) * p[f"{name}.weight"] + p[f"{name}.bias"]


def conv1d(p, name, x):
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def attention(p, name, x, allowed):
    batch, length, width = x.shape
    q, k, v = (
        part.reshape(batch, length, N_HEAD, width // N_HEAD).transpose(0, 2, 1, 3)
        for part in jnp.split(conv1d(p, f"{name}.c_attn", x), 3, axis=-1)
    )
    scores = q @ k.transpose(0, 1, 3, 2) / jnp.sqrt(width // N_HEAD)
    scores = jnp.where(allowed, scores, jnp.finfo(scores.dtype).min)
    mixed = (jax.nn.softmax(scores, axis=-1) @ v).transpose(0, 2, 1, 3)
    return conv1d(p, f"{name}.c_proj", mixed.reshape(batch, length, width))


def forward(p, input_ids, attention_mask, n_layer):
    length = input_ids.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    allowed = causal[None, None] & (attention_mask[:, None, None, :] != 0)
    x = p["transformer.wte.weight"][input_ids] + p["transformer.wpe.weight"][:length]
    for i in range(n_layer):
        block = f"transformer.h.{i}"
        x = x + attention(p, f"{block}.attn", layer_norm(p, f"{block}.ln_1", x), allowed)
        hidden = conv1d(p, f"{block}.mlp.c_fc", layer_norm(p, f"{block}.ln_2", x))
        x = x + conv1d(p, f"{block}.mlp.c_proj", jax.nn.gelu(hidden, approximate=True))
    return layer_norm(p, "transformer.ln_f", x) @ p["transformer.wte.weight"].T
