"""Conversion of a torch optimizer's state to an optax state and back, so that training continues in JAX.

from converters.optimizer.convert import convert_optimizer
from converters.optimizer.load import load_optimizer

done = convert_optimizer("training.pt", plan=plan, key="optimizer", output="opt.safetensors")
tx = done.recipe.build(params)  # done.recipe.text is the call to write: optax.adamw(0.001, …)
opt_state = load_optimizer("opt.safetensors", tx, params)
"""
