"""Tagger in Flax, ported from examples.tagger.torch_tagger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import TaggerConfig


def torch_uniform(key: Any, shape: Sequence[int], dtype: Any) -> Array:
    """torch's default for the weight of a Linear or a Conv: uniform within 1 / sqrt(fan_in)."""
    return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")(key, shape, dtype)


def uniform_within(bound: float) -> nn.initializers.Initializer:
    """Draws between -bound and bound."""
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


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


class Module(nn.Module, kw_only=True):
    """A module of this model.

    Attributes:
        dtype: dtype of the computation, or None for that of the weights and inputs.
        param_dtype: dtype of the weights that `init` makes.
        precision: precision of the matrix products in layers.
    """

    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @property
    def dtypes(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    @property
    def numerics(self) -> dict[str, Any]:
        return {**self.dtypes, "precision": self.precision}


class Tagger(Module):
    """Give each word of a sentence its tag."""

    config: TaggerConfig

    def setup(self) -> None:
        init = nn.initializers.normal(1.0)
        self.embed = nn.Embed(
            self.config.vocabulary, self.config.embedding, embedding_init=init, **self.dtypes
        )
        self.lstm = LSTM(
            hidden_size=self.config.hidden,
            num_layers=2,
            bidirectional=True,
            dropout=0.1,
            **self.numerics,
        )
        self.norm = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, **self.dtypes)
        self.out = nn.Dense(
            self.config.tags,
            kernel_init=torch_uniform,
            bias_init=uniform_within((2 * self.config.hidden) ** -0.5),
            **self.numerics,
        )

    def __call__(self, ids: Array, deterministic: bool = True) -> Array:
        """(batch, words) of the vocabulary → (batch, words, tags)."""
        states, _ = self.lstm(self.embed(ids), deterministic=deterministic)
        # The last state of a direction is not needed: every word has one.
        return self.out(jax.nn.relu(self.norm(states)))
