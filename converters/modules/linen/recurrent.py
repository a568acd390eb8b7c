"""torch's RNN, LSTM and GRU, and their cells, as linen modules."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from converters.modules.functional import recurrent
from converters.modules.functional.recurrent import Carry, Kind


def _parameters(module: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """Return the weights, initialized as in torch: uniform within 1 / sqrt(hidden_size)."""
    bound = module.hidden_size**-0.5

    def uniform(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return jax.random.uniform(key, shape, dtype, minval=-bound, maxval=bound)

    def init(name: str) -> Any:
        kind = name.partition("_l")[0]
        return getattr(module, f"{kind}_init", None) or uniform

    return {
        name: module.param(name, init(name), shape, module.param_dtype)
        for name, shape in shapes.items()
    }


def _promoted(
    module: Any, inputs: Array, shapes: dict[str, tuple[int, ...]]
) -> tuple[Array, dict[str, Array]]:
    """Return the input and the weights in the dtype of the computation."""
    weights = _parameters(module, shapes)
    inputs, *arrays = nn.dtypes.promote_dtype(inputs, *weights.values(), dtype=module.dtype)
    return inputs, dict(zip(weights, arrays, strict=True))


class _Stack(nn.Module):
    """Base class of RNN, LSTM and GRU; attributes as in torch, the input's size is inferred."""

    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    input_kernel_init: nn.initializers.Initializer | None = None
    hidden_kernel_init: nn.initializers.Initializer | None = None
    input_bias_init: nn.initializers.Initializer | None = None
    hidden_bias_init: nn.initializers.Initializer | None = None

    kind: ClassVar[Kind]

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        hx: Array | Carry | None = None,
        *,
        lengths: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Any]:
        """Return outputs and last states, as in torch.

        Args:
            inputs: (time, batch, in), with batch_first (batch, time, in), or (time, in).
            hx: the initial states, (layers * directions, batch, hidden); of an LSTM (h, c).
            lengths: the length of each sequence, as in torch's packed sequences; None if all are full.
            deterministic: whether to skip dropout between the layers.
        """
        projected = getattr(self, "proj_size", 0)
        shapes = recurrent.stack_shapes(
            self.kind,
            inputs.shape[-1],
            self.hidden_size,
            self.num_layers,
            bidirectional=self.bidirectional,
            bias=self.bias,
            projected=projected,
        )
        inputs, weights = _promoted(self, inputs, shapes)
        drop = nn.Dropout(self.dropout, deterministic=deterministic) if self.dropout else None
        return recurrent.run(
            self.kind,
            weights,
            inputs,
            hx,
            hidden=self.hidden_size,
            projected=projected,
            batch_first=self.batch_first,
            lengths=lengths,
            nonlinearity=getattr(self, "nonlinearity", "tanh"),
            between=drop,
        )


class RNN(_Stack):
    """`torch.nn.RNN`; its two biases of each layer are separate."""

    nonlinearity: str = "tanh"

    kind: ClassVar[Kind] = "RNN"


class LSTM(_Stack):
    """`torch.nn.LSTM`, with proj_size; states are (h, c), torch's order (Flax's cells: (c, h))."""

    proj_size: int = 0

    kind: ClassVar[Kind] = "LSTM"


class GRU(_Stack):
    """`torch.nn.GRU`: the reset gate applies to the hidden product with its bias, as in cuDNN."""

    kind: ClassVar[Kind] = "GRU"


class _Cell(nn.Module):
    hidden_size: int
    bias: bool = True
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    kind: ClassVar[Kind]

    @nn.compact
    def __call__(self, inputs: Array, hx: Array | Carry | None = None) -> Any:
        """Return the next h, or (h, c) for an LSTM's cell; without `hx` from zeros."""
        shapes = recurrent.weight_shapes(
            self.kind, inputs.shape[-1], self.hidden_size, bias=self.bias
        )
        inputs, weights = _promoted(self, inputs, shapes)
        if hx is None:
            rows = recurrent.zeros(
                self.kind, 1, inputs.shape[:-1], self.hidden_size, 0, inputs.dtype
            )
            carry: Carry = tuple(state[0] for state in rows)
        else:
            carry = tuple(hx) if self.kind == "LSTM" else (hx,)
        new = recurrent.step(
            self.kind,
            weights,
            inputs,
            carry,
            getattr(self, "nonlinearity", "tanh"),
        )
        return new if self.kind == "LSTM" else new[0]


class RNNCell(_Cell):
    """`torch.nn.RNNCell`."""

    nonlinearity: str = "tanh"

    kind: ClassVar[Kind] = "RNN"


class LSTMCell(_Cell):
    """`torch.nn.LSTMCell`."""

    kind: ClassVar[Kind] = "LSTM"


class GRUCell(_Cell):
    """`torch.nn.GRUCell`."""

    kind: ClassVar[Kind] = "GRU"
