"""torch's RNN, LSTM and GRU, and their cells, as nnx modules."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import DTypeLike

from converters.modules.functional import recurrent
from converters.modules.functional.recurrent import Carry, Kind


def _make(
    module: Any,
    shapes: dict[str, tuple[int, ...]],
    param_dtype: DTypeLike,
    rngs: nnx.Rngs,
    **inits: nnx.initializers.Initializer | None,
) -> None:
    """Create the weights, as in torch if nothing else is said: uniform within 1 / sqrt(hidden_size)."""
    bound = module.hidden_size**-0.5

    def uniform(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return jax.random.uniform(key, shape, dtype, minval=-bound, maxval=bound)

    for name, shape in shapes.items():
        init = inits.get(name.partition("_l")[0]) or uniform
        setattr(module, name, nnx.Param(init(rngs.params(), shape, param_dtype)))


def _promoted(module: Any, inputs: Array) -> tuple[Array, dict[str, Array]]:
    """Return the input and the weights in the dtype of the computation."""
    weights = (getattr(module, name)[...] for name in module.names)
    inputs, *arrays = dtypes.promote_dtype((inputs, *weights), dtype=module.dtype)
    return inputs, dict(zip(module.names, arrays, strict=True))


class _Stack(nnx.Module):
    """Base class of RNN, LSTM and GRU; arguments as in torch."""

    kind: ClassVar[Kind]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        nonlinearity: str = "tanh",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        input_kernel_init: nnx.initializers.Initializer | None = None,
        hidden_kernel_init: nnx.initializers.Initializer | None = None,
        input_bias_init: nnx.initializers.Initializer | None = None,
        hidden_bias_init: nnx.initializers.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.hidden_size, self.proj_size, self.dtype = hidden_size, proj_size, dtype
        self.batch_first, self.nonlinearity = batch_first, nonlinearity
        shapes = recurrent.stack_shapes(
            self.kind,
            input_size,
            hidden_size,
            num_layers,
            bidirectional=bidirectional,
            bias=bias,
            projected=proj_size,
        )
        self.names = tuple(shapes)
        _make(
            self,
            shapes,
            param_dtype,
            rngs,
            input_kernel=input_kernel_init,
            hidden_kernel=hidden_kernel_init,
            input_bias=input_bias_init,
            hidden_bias=hidden_bias_init,
        )
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None

    def __call__(
        self, inputs: Array, hx: Array | Carry | None = None, *, lengths: Array | None = None
    ) -> tuple[Array, Any]:
        """Return outputs and last states, as in torch.

        Args:
            inputs: (time, batch, in), with batch_first (batch, time, in), or (time, in).
            hx: the initial states, (layers * directions, batch, hidden); of an LSTM (h, c).
            lengths: the length of each sequence, as in torch's packed sequences; None if all are full.
        """
        inputs, weights = _promoted(self, inputs)
        return recurrent.run(
            self.kind,
            weights,
            inputs,
            hx,
            hidden=self.hidden_size,
            projected=self.proj_size,
            batch_first=self.batch_first,
            lengths=lengths,
            nonlinearity=self.nonlinearity,
            between=self.dropout,
        )


class RNN(_Stack):
    """`torch.nn.RNN`; its two biases of each layer are separate."""

    kind: ClassVar[Kind] = "RNN"


class LSTM(_Stack):
    """`torch.nn.LSTM`, with proj_size; states are (h, c), torch's order (Flax's cells: (c, h))."""

    kind: ClassVar[Kind] = "LSTM"


class GRU(_Stack):
    """`torch.nn.GRU`, with the bias of the hidden product that nnx's own cell lacks."""

    kind: ClassVar[Kind] = "GRU"


class _Cell(nnx.Module):
    kind: ClassVar[Kind]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        nonlinearity: str = "tanh",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.hidden_size, self.nonlinearity, self.dtype = hidden_size, nonlinearity, dtype
        shapes = recurrent.weight_shapes(self.kind, input_size, hidden_size, bias=bias)
        self.names = tuple(shapes)
        _make(self, shapes, param_dtype, rngs)

    def __call__(self, inputs: Array, hx: Array | Carry | None = None) -> Any:
        """Return the next h, or (h, c) for an LSTM's cell; without `hx` from zeros."""
        inputs, weights = _promoted(self, inputs)
        if hx is None:
            rows = recurrent.zeros(
                self.kind, 1, inputs.shape[:-1], self.hidden_size, 0, inputs.dtype
            )
            carry: Carry = tuple(state[0] for state in rows)
        else:
            carry = tuple(hx) if self.kind == "LSTM" else (hx,)
        new = recurrent.step(self.kind, weights, inputs, carry, self.nonlinearity)
        return new if self.kind == "LSTM" else new[0]


class RNNCell(_Cell):
    """`torch.nn.RNNCell`."""

    kind: ClassVar[Kind] = "RNN"


class LSTMCell(_Cell):
    """`torch.nn.LSTMCell`."""

    kind: ClassVar[Kind] = "LSTM"


class GRUCell(_Cell):
    """`torch.nn.GRUCell`."""

    kind: ClassVar[Kind] = "GRU"
