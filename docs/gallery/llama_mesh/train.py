"""Train the port for 10 steps in bfloat16 on 8 devices, with its rules, and on one device."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from llama_mesh import (
    LlamaForCausalLM,
    LlamaForCausalLMConfig,
    load_params,
    make_mesh,
    shard_batch,
    shard_params,
    shardings,
)

model = LlamaForCausalLM(LlamaForCausalLMConfig(), dtype=jnp.bfloat16)
optimizer = optax.adamw(3e-3)
# Each row counts up from another token: something to learn.
BATCH = {"input_ids": (np.arange(8)[:, None] * 13 + np.arange(17)) % 128}


@partial(jax.jit, donate_argnums=(0, 1))
def step(params, state, input_ids):
    def loss_of(params):
        logits = model.apply({"params": params}, input_ids=input_ids[:, :-1])["logits"]
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), input_ids[:, 1:]
        )
        return losses.mean()

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def train(mesh):
    params = shard_params(load_params(), mesh)["params"]
    abstract = jax.eval_shape(optimizer.init, params)
    state = jax.jit(optimizer.init, out_shardings=shardings(abstract, mesh))(params)
    losses = []
    with jax.set_mesh(mesh):
        for _ in range(10):
            params, state, loss = step(params, state, **shard_batch(BATCH, mesh))
            losses.append(float(loss))
    return params, losses


params, losses = train(make_mesh(fsdp=4, tensor=2))
_, alone = train(make_mesh(devices=jax.devices()[:1]))
print("q_proj/kernel:", params["model"]["layers_0"]["self_attn"]["q_proj"]["kernel"].sharding.spec)
for number, (loss, other) in enumerate(zip(losses, alone, strict=True), 1):
    print(f"step {number:2}: {len(jax.devices())} devices {loss:.3f}, one device {other:.3f}")
