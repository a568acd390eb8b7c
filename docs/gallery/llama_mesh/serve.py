"""Generate with the port that has a cache, and compare the port in Flax NNX with it."""

import jax.numpy as jnp
import llama_cache
import llama_nnx
import numpy as np
from llama_cache.generate import generate

model, variables = llama_cache.build(), llama_cache.load_params()
# Prompts of 5 and 3 tokens, padded on the left.
input_ids = np.array([[5, 6, 7, 8, 9], [0, 0, 20, 21, 22]])
attention_mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
tokens = generate(model, variables, input_ids, attention_mask, max_new_tokens=12)
for row in np.asarray(tokens):
    print("tokens:", *row)

logits = model.apply(variables, input_ids=input_ids, attention_mask=attention_mask)["logits"]
nnx_model = llama_nnx.build()
nnx_logits = nnx_model(input_ids=input_ids, attention_mask=attention_mask)["logits"]
distance = jnp.linalg.norm(nnx_logits - logits) / jnp.linalg.norm(logits)
print("nnx equals linen:", "yes" if distance < 1e-6 else f"no, relative L2 {distance:.1e}")
