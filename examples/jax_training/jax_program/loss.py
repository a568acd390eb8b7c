"""The loss of before.py: what its training step computes of a batch."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from model import Module, StepConfig, ToyModel


class Step(Module):
    config: StepConfig

    def setup(self) -> None:
        self.ddp_model = ToyModel(**self.numerics)

    def __call__(self, inputs: Array, labels: Array) -> Array:
        outputs = self.ddp_model(inputs)
        return jnp.square(outputs - labels).mean()


STEP = Step(StepConfig())


def loss_of(params, state, inputs):
    """Loss of a micro-batch: the number on which ddp_toy/before.py:60 calls backward."""
    return STEP.apply({**state, "params": params}, **inputs)
