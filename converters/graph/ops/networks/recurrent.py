"""Recurrent layers that a module calls with its own weights."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from converters.graph.expression import call, code
from converters.graph.ops.parts import demand
from converters.graph.ops.registry import op, real, sample


def _layers(
    params: Sequence[Any], has_biases: bool, num_layers: int, bidirectional: bool
) -> list[list[Any]]:
    """The weights of each layer and direction."""
    turns = num_layers * (2 if bidirectional else 1)
    each = len(params) // turns
    demand(each == (4 if has_biases else 2), "a recurrent layer with projections")
    return [list(params[place * each : (place + 1) * each]) for place in range(turns)]


def _named(bidirectional: bool, batch_first: bool) -> dict[str, Any]:
    return ({"bidirectional": True} if bidirectional else {}) | (
        {"batch_first": True} if batch_first else {}
    )


def _params(
    gates: int, hidden: int, width: int, layers: int, turns: int, biases: bool
) -> list[Any]:
    parameters: list[Any] = []
    for layer in range(layers):
        inputs = width if layer == 0 else hidden * turns
        for _ in range(turns):
            parameters += [real(gates * hidden, inputs), real(gates * hidden, hidden)]
            parameters += [real(gates * hidden), real(gates * hidden)] if biases else []
    return parameters


def _state(layers: int, turns: int, x: tuple[int, ...], batch_first: bool) -> Any:
    return real(layers * turns, *((x[0] if batch_first else x[1],) if len(x) == 3 else ()), 3)


_SHAPES = (
    ((5, 2, 4), 1, 1, True, False),
    ((2, 5, 4), 2, 2, True, True),
    ((5, 2, 4), 2, 1, False, False),
)


@op(
    "aten.lstm.input",
    samples=tuple(
        sample(
            real(*x),
            [_state(n, t, x, first), _state(n, t, x, first)],
            _params(4, 3, 4, n, t, biases),
            biases,
            n,
            0.0,
            False,
            t == 2,
            first,
            tolerance=5e-6,
        )
        for x, n, t, biases, first in _SHAPES
    ),
)
def lstm(
    x: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> ast.expr:
    """The outputs of the last layer, and the final states."""
    demand(not (train and dropout), "dropout in training draws random numbers")
    demand(x.ndim == 3, "a recurrent layer without a batch")
    layers = _layers(params, has_biases, num_layers, bidirectional)
    return call("lstm", x, hx[0], hx[1], layers, **_named(bidirectional, batch_first))


def _simple(name: str, function: str, gates: int, **named: Any) -> None:
    def write(
        x: Any,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> ast.expr:
        demand(not (train and dropout), "dropout in training draws random numbers")
        demand(x.ndim == 3, "a recurrent layer without a batch")
        layers = _layers(params, has_biases, num_layers, bidirectional)
        return call(function, x, hx, layers, **named, **_named(bidirectional, batch_first))

    write.__doc__ = "The outputs of the last layer, and the last states."
    cases = tuple(
        sample(
            real(*x),
            _state(n, t, x, first),
            _params(gates, 3, 4, n, t, biases),
            biases,
            n,
            0.0,
            False,
            t == 2,
            first,
            tolerance=5e-6,
        )
        for x, n, t, biases, first in _SHAPES
    )
    op(f"aten.{name}.input", samples=cases)(write)


_simple("gru", "gru", 3)
_simple("rnn_tanh", "simple_rnn", 1)
_simple("rnn_relu", "simple_rnn", 1, relu=True)


@op(
    "aten.lstm_cell.default",
    samples=(
        sample(real(2, 4), [real(2, 3), real(2, 3)], real(12, 4), real(12, 3), real(12), real(12)),
    ),
)
def lstm_cell(
    x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> ast.expr:
    """Single LSTM step: the output, which is the hidden state, and the cell state."""
    weights = [weight for weight in (w_ih, w_hh, b_ih, b_hh) if weight is not None]
    return call("lstm_step", hx[0], hx[1], code("{x} @ {w}.T", x=x, w=w_ih), weights)


@op(
    "aten.gru_cell.default",
    samples=(
        sample(real(2, 4), real(2, 3), real(9, 4), real(9, 3), real(9), real(9)),
        sample(real(2, 4), real(2, 3), real(9, 4), real(9, 3)),
    ),
)
def gru_cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> ast.expr:
    """Single GRU step: the new hidden state."""
    weights = [weight for weight in (w_ih, w_hh, b_ih, b_hh) if weight is not None]
    return call("gru_step", hx, code("{x} @ {w}.T", x=x, w=w_ih), weights)
