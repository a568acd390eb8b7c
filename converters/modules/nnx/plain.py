"""torch's LSTM with the common options in few lines, for `migrate port`.

`converters.modules.nnx.LSTM` has all of torch's options; both have the same weights with the same
names.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import DTypeLike


class LSTM(nnx.Module):
    """`torch.nn.LSTM` of (batch, length, features), from states of zeros; gates are i, f, g, o.

    In bfloat16 the gates and c are float32 until the end, as in torch's kernels.
    """

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
        gates, bound = 4 * hidden_size, hidden_size**-0.5

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

    def __call__(self, inputs: Array) -> tuple[Array, tuple[Array, Array]]:
        """Return the outputs, and h and c after the last step of each layer and direction.

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
        return inputs, (jnp.stack([h for h, _ in states]), jnp.stack([c for _, c in states]))

    def _direction(
        self, inputs: Array, suffix: str, *, reverse: bool
    ) -> tuple[Array, tuple[Array, Array]]:
        names = ("input_kernel", "hidden_kernel", "input_bias", "hidden_bias")
        weights = (getattr(self, f"{name}{suffix}")[...] for name in names)
        inputs, input_kernel, hidden_kernel, input_bias, hidden_bias = dtypes.promote_dtype(
            (inputs, *weights), dtype=self.dtype
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
        # One product for all steps: the input's contribution does not depend on the state.
        projected = (product(inputs, input_kernel) + input_bias).swapaxes(0, 1)
        (h, c), outputs = jax.lax.scan(
            step, (start, start.astype(wide)), projected, reverse=reverse
        )
        return outputs.swapaxes(0, 1), (h, c.astype(h.dtype))
