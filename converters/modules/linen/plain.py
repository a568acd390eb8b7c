"""torch's LSTM, GRU and RNN with the common options in few lines, for `migrate port`.

`converters.modules.linen.LSTM` and its like have all of torch's options; both have the same weights with
the same names.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike


class _Recurrent(nn.Module):
    """Recurrent layers of (batch, length, features), from states of zeros.

    In bfloat16 the gates are float32, as in torch's kernels.
    """

    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None
    # None: uniform within 1 / sqrt(hidden_size), torch's default.
    input_kernel_init: nn.initializers.Initializer | None = None
    hidden_kernel_init: nn.initializers.Initializer | None = None
    input_bias_init: nn.initializers.Initializer | None = None
    hidden_bias_init: nn.initializers.Initializer | None = None

    gates: ClassVar[int]

    @nn.compact
    def __call__(self, inputs: Array, *, deterministic: bool = True) -> tuple[Array, Any]:
        """Return the outputs, and the states after the last step of each layer and direction.

        Args:
            inputs: (batch, length, features).
            deterministic: whether to skip dropout between the layers.
        """
        states = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                inputs = nn.Dropout(self.dropout)(inputs, deterministic=deterministic)
            outputs = []
            for reverse in range(1 + self.bidirectional):
                suffix = f"_l{layer}" + "_reverse" * reverse
                output, state = self._direction(inputs, suffix, reverse=bool(reverse))
                outputs.append(output)
                states.append(state)
            inputs = jnp.concatenate(outputs, axis=-1)
        last = tuple(jnp.stack(state) for state in zip(*states, strict=True))
        return inputs, last if len(last) > 1 else last[0]

    def _direction(
        self, inputs: Array, suffix: str, *, reverse: bool
    ) -> tuple[Array, tuple[Array, ...]]:
        gates, bound = self.gates * self.hidden_size, self.hidden_size**-0.5

        def uniform(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
            return jax.random.uniform(key, shape, dtype, minval=-bound, maxval=bound)

        def weight(name: str, init: nn.initializers.Initializer | None, *shape: int) -> Array:
            value: Array = self.param(f"{name}{suffix}", init or uniform, shape, self.param_dtype)
            return value

        input_kernel = weight("input_kernel", self.input_kernel_init, inputs.shape[-1], gates)
        hidden_kernel = weight("hidden_kernel", self.hidden_kernel_init, self.hidden_size, gates)
        input_bias = weight("input_bias", self.input_bias_init, gates)
        hidden_bias = weight("hidden_bias", self.hidden_bias_init, gates)
        inputs, input_kernel, hidden_kernel, input_bias, hidden_bias = nn.dtypes.promote_dtype(
            inputs, input_kernel, hidden_kernel, input_bias, hidden_bias, dtype=self.dtype
        )
        wide = jnp.promote_types(inputs.dtype, jnp.float32)

        def product(x: Array, kernel: Array) -> Array:
            return jnp.matmul(x, kernel, precision=self.precision, preferred_element_type=wide)

        def step(state: tuple[Array, ...], x: Array) -> tuple[tuple[Array, ...], Array]:
            state = self.advanced(state, x, product(state[0], hidden_kernel) + hidden_bias)
            return state, state[0]

        start = self.first(jnp.zeros((inputs.shape[0], self.hidden_size), inputs.dtype), wide)
        # One product for all steps: the input's contribution does not depend on the state.
        projected = (product(inputs, input_kernel) + input_bias).swapaxes(0, 1)
        last, outputs = jax.lax.scan(step, start, projected, reverse=reverse)
        return outputs.swapaxes(0, 1), tuple(state.astype(inputs.dtype) for state in last)

    @staticmethod
    def first(h: Array, wide: Any) -> tuple[Array, ...]:
        """The states before the first step."""
        return (h,)

    @staticmethod
    def advanced(state: tuple[Array, ...], x: Array, hidden: Array) -> tuple[Array, ...]:
        """Compute the next states from the products of the input and of h."""
        raise NotImplementedError


class LSTM(_Recurrent):
    """`torch.nn.LSTM`; gates are i, f, g, o, and states are (h, c)."""

    gates: ClassVar[int] = 4

    @staticmethod
    def first(h: Array, wide: Any) -> tuple[Array, ...]:
        """Zeros: c stays wide until the end."""
        return h, h.astype(wide)

    @staticmethod
    def advanced(state: tuple[Array, ...], x: Array, hidden: Array) -> tuple[Array, ...]:
        """Compute the next states from the products of the input and of h."""
        h, c = state
        i, f, g, o = jnp.split(x + hidden, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c)).astype(h.dtype), c


class GRU(_Recurrent):
    """`torch.nn.GRU`: the reset gate applies to the hidden product with its bias, as in cuDNN."""

    gates: ClassVar[int] = 3

    @staticmethod
    def advanced(state: tuple[Array, ...], x: Array, hidden: Array) -> tuple[Array, ...]:
        """Compute the next state from the products of the input and of h."""
        (h,) = state
        (x_r, x_z, x_n), (h_r, h_z, h_n) = jnp.split(x, 3, -1), jnp.split(hidden, 3, -1)
        update = jax.nn.sigmoid(x_z + h_z)
        new = jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * h_n)
        return (((1 - update) * new + update * h).astype(h.dtype),)


class RNN(_Recurrent):
    """`torch.nn.RNN` with tanh."""

    gates: ClassVar[int] = 1

    @staticmethod
    def advanced(state: tuple[Array, ...], x: Array, hidden: Array) -> tuple[Array, ...]:
        """Compute the next state from the products of the input and of h."""
        return (jnp.tanh(x + hidden).astype(state[0].dtype),)
