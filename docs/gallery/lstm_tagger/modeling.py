"""Tagger in Flax, ported from examples.tagger.torch_tagger."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from .config import TaggerConfig


class LSTM(nn.Module):
    """`torch.nn.LSTM` of (batch, length, features), from states of zeros; gates are i, f, g, o."""

    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False

    @nn.compact
    def __call__(self, inputs: Array) -> tuple[Array, tuple[Array, Array]]:
        """The outputs, and h and c after the last step of each layer and direction."""
        states = []
        for layer in range(self.num_layers):
            outputs = []
            for reverse in range(1 + self.bidirectional):
                suffix = f"_l{layer}" + "_reverse" * reverse
                output, state = self._direction(inputs, suffix, reverse=bool(reverse))
                outputs.append(output)
                states.append(state)
            inputs = jnp.concatenate(outputs, axis=-1)
        return inputs, (jnp.stack([h for h, _ in states]), jnp.stack([c for _, c in states]))

    def _direction(
        self, inputs: Array, suffix: str, *, reverse: bool
    ) -> tuple[Array, tuple[Array, Array]]:
        kernel, zeros = nn.initializers.lecun_normal(), nn.initializers.zeros
        wide = 4 * self.hidden_size
        input_kernel = self.param(f"input_kernel{suffix}", kernel, (inputs.shape[-1], wide))
        hidden_kernel = self.param(f"hidden_kernel{suffix}", kernel, (self.hidden_size, wide))
        input_bias = self.param(f"input_bias{suffix}", zeros, (wide,))
        hidden_bias = self.param(f"hidden_bias{suffix}", zeros, (wide,))

        def step(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
            h, c = state
            i, f, g, o = jnp.split(x + h @ hidden_kernel + hidden_bias, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((inputs.shape[0], self.hidden_size), inputs.dtype)
        # One product for all steps: the input's share does not depend on the state.
        projected = (inputs @ input_kernel + input_bias).swapaxes(0, 1)
        state, outputs = jax.lax.scan(step, (start, start), projected, reverse=reverse)
        return outputs.swapaxes(0, 1), state


class Tagger(nn.Module):
    """Give each word of a sentence its tag."""

    config: TaggerConfig

    def setup(self) -> None:
        self.embed = nn.Embed(self.config.vocabulary, self.config.embedding)
        self.lstm = LSTM(hidden_size=self.config.hidden, num_layers=2, bidirectional=True)
        self.norm = nn.LayerNorm(epsilon=1e-05, use_fast_variance=False)
        self.out = nn.Dense(self.config.tags)

    def __call__(self, ids: jax.Array) -> jax.Array:
        states, _ = self.lstm(self.embed(ids))
        # The last state of a direction is not needed: every word has one.
        return self.out(jax.nn.relu(self.norm(states)))
