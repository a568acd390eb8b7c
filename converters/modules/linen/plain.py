"""torch's LSTM as most models use it, in the lines that this takes: what `migrate port` writes then.

`converters.modules.linen.LSTM` has all of torch's options; both have the same weights by the same names.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike


class LSTM(nn.Module):
    """`torch.nn.LSTM` of (batch, length, features), from states of zeros; gates are i, f, g, o.

    In bfloat16 the gates and c are float32 until the end, as in torch's kernels.
    """

    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None

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
        gates, kind = 4 * self.hidden_size, self.param_dtype
        input_kernel = self.param(f"input_kernel{suffix}", kernel, (inputs.shape[-1], gates), kind)
        hidden_kernel = self.param(
            f"hidden_kernel{suffix}", kernel, (self.hidden_size, gates), kind
        )
        input_bias = self.param(f"input_bias{suffix}", zeros, (gates,), kind)
        hidden_bias = self.param(f"hidden_bias{suffix}", zeros, (gates,), kind)
        inputs, input_kernel, hidden_kernel, input_bias, hidden_bias = nn.dtypes.promote_dtype(
            inputs, input_kernel, hidden_kernel, input_bias, hidden_bias, dtype=self.dtype
        )
        wide = jnp.promote_types(inputs.dtype, jnp.float32)

        def product(x: Array, kernel: Array) -> Array:
            return jnp.matmul(x, kernel, precision=self.precision, preferred_element_type=wide)

        def step(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
            h, c = state
            i, f, g, o = jnp.split(x + product(h, hidden_kernel) + hidden_bias, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = (jax.nn.sigmoid(o) * jnp.tanh(c)).astype(h.dtype)
            return (h, c), h

        start = jnp.zeros((inputs.shape[0], self.hidden_size), inputs.dtype)
        # One product for all steps: the input's share does not depend on the state.
        projected = (product(inputs, input_kernel) + input_bias).swapaxes(0, 1)
        (h, c), outputs = jax.lax.scan(
            step, (start, start.astype(wide)), projected, reverse=reverse
        )
        return outputs.swapaxes(0, 1), (h, c.astype(h.dtype))
