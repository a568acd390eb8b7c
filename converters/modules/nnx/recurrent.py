"""torch's RNN, LSTM and GRU, and their cells, as nnx modules."""

from __future__ import annotations

from typing import Any, ClassVar

from flax import nnx
from jax import Array

from converters.modules.functional import recurrent
from converters.modules.functional.recurrent import Carry, Kind


def _make(module: nnx.Module, shapes: dict[str, tuple[int, ...]], rngs: nnx.Rngs) -> None:
    kernel, bias = nnx.initializers.lecun_normal(), nnx.initializers.zeros
    for name, shape in shapes.items():
        value = (kernel if len(shape) == 2 else bias)(rngs.params(), shape)
        setattr(module, name, nnx.Param(value))


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
        rngs: nnx.Rngs,
    ) -> None:
        self.hidden_size, self.proj_size = hidden_size, proj_size
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
        _make(self, shapes, rngs)
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
        return recurrent.run(
            self.kind,
            {name: getattr(self, name)[...] for name in self.names},
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
        rngs: nnx.Rngs,
    ) -> None:
        self.hidden_size, self.nonlinearity = hidden_size, nonlinearity
        shapes = recurrent.weight_shapes(self.kind, input_size, hidden_size, bias=bias)
        self.names = tuple(shapes)
        _make(self, shapes, rngs)

    def __call__(self, inputs: Array, hx: Array | Carry | None = None) -> Any:
        """Return the next h, or (h, c) for an LSTM's cell; without `hx` from zeros."""
        if hx is None:
            rows = recurrent.zeros(self.kind, 1, inputs.shape[:-1], self.hidden_size, 0)
            carry: Carry = tuple(state[0] for state in rows)
        else:
            carry = tuple(hx) if self.kind == "LSTM" else (hx,)
        weights = {name: getattr(self, name)[...] for name in self.names}
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
