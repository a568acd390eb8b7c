"""torch's LSTM, GRU and RNN with the common options in few lines, for `migrate port`.

`converters.modules.nnx.LSTM` and its like have all of torch's options; both have the same weights with the
same names.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import DTypeLike


class _Recurrent(nnx.Module):
    """Recurrent layers of (batch, length, features), from states of zeros.

    In bfloat16 the gates are float32, as in torch's kernels.
    """

    gates: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        # None: uniform within 1 / sqrt(hidden_size), torch's default.
        input_kernel_init: nnx.initializers.Initializer | None = None,
        hidden_kernel_init: nnx.initializers.Initializer | None = None,
        input_bias_init: nnx.initializers.Initializer | None = None,
        hidden_bias_init: nnx.initializers.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.hidden_size, self.num_layers, self.bidirectional = (
            hidden_size,
            num_layers,
            bidirectional,
        )
        self.dtype, self.precision = dtype, precision
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None
        gates, bound = self.gates * hidden_size, hidden_size**-0.5

        def uniform(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
            return jax.random.uniform(key, shape, dtype, minval=-bound, maxval=bound)

        for layer in range(num_layers):
            features = hidden_size * (1 + bidirectional) if layer else input_size
            for suffix in self._suffixes(layer):
                for name, init, *shape in (
                    ("input_kernel", input_kernel_init, features, gates),
                    ("hidden_kernel", hidden_kernel_init, hidden_size, gates),
                    ("input_bias", input_bias_init, gates),
                    ("hidden_bias", hidden_bias_init, gates),
                ):
                    start = (init or uniform)(rngs.params(), tuple(shape), param_dtype)
                    setattr(self, f"{name}{suffix}", nnx.Param(start))

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", *([f"_l{layer}_reverse"] if self.bidirectional else [])]

    def __call__(self, inputs: Array) -> tuple[Array, Any]:
        """Return the outputs, and the states after the last step of each layer and direction.

        Args:
            inputs: (batch, length, features).
        """
        states = []
        for layer in range(self.num_layers):
            if layer and self.dropout is not None:
                inputs = self.dropout(inputs)
            outputs = []
            for reverse, suffix in enumerate(self._suffixes(layer)):
                output, state = self._direction(inputs, suffix, reverse=bool(reverse))
                outputs.append(output)
                states.append(state)
            inputs = jnp.concatenate(outputs, axis=-1)
        last = tuple(jnp.stack(state) for state in zip(*states, strict=True))
        return inputs, last if len(last) > 1 else last[0]

    def _direction(
        self, inputs: Array, suffix: str, *, reverse: bool
    ) -> tuple[Array, tuple[Array, ...]]:
        names = ("input_kernel", "hidden_kernel", "input_bias", "hidden_bias")
        weights = (getattr(self, f"{name}{suffix}")[...] for name in names)
        inputs, input_kernel, hidden_kernel, input_bias, hidden_bias = dtypes.promote_dtype(
            (inputs, *weights), dtype=self.dtype
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
