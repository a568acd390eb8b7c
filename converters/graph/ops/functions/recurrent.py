"""Recurrent layers on torch's weights: [input, hidden] or [input, hidden, input bias, hidden bias]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def recurrent_layers(
    x: jax.Array,
    states: tuple[jax.Array, ...],
    layers: list[list[jax.Array]],
    step: Callable[..., tuple[jax.Array, ...]],
    bidirectional: bool = False,
    batch_first: bool = False,
) -> tuple[jax.Array, ...]:
    """Layers upon layers, each forward or both ways: the last one's outputs, and the last states."""
    x = x.swapaxes(0, 1) if batch_first else x
    turns = 2 if bidirectional else 1
    ends: list[tuple[jax.Array, ...]] = []
    for place in range(0, len(layers), turns):
        outputs = []
        for turn in range(turns):
            weights = layers[place + turn]

            def one(carry: Any, inputs: jax.Array, weights: list[jax.Array] = weights) -> Any:
                carry = step(*carry, inputs, weights)
                return carry, carry[0]

            first = tuple(state[place + turn] for state in states)
            end, output = jax.lax.scan(one, first, x @ weights[0].T, reverse=turn == 1)
            ends.append(end)
            outputs.append(output)
        x = jnp.concatenate(outputs, axis=-1) if bidirectional else outputs[0]
    last = tuple(jnp.stack(state) for state in zip(*ends, strict=True))
    return (x.swapaxes(0, 1) if batch_first else x, *last)


def lstm_step(
    hidden: jax.Array, cell: jax.Array, inputs: jax.Array, weights: list[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Step of an LSTM; `inputs` are the inputs times their weights."""
    gates = inputs + hidden @ weights[1].T
    if len(weights) > 2:
        gates = gates + weights[2] + weights[3]
    take, keep, new, show = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
    return jax.nn.sigmoid(show) * jnp.tanh(cell), cell


def gru_step(hidden: jax.Array, inputs: jax.Array, weights: list[jax.Array]) -> jax.Array:
    """Step of a GRU; `inputs` are the inputs times their weights."""
    before = hidden @ weights[1].T
    if len(weights) > 2:
        inputs, before = inputs + weights[2], before + weights[3]
    reset, keep, new = jnp.split(inputs, 3, axis=-1)
    reset_before, keep_before, new_before = jnp.split(before, 3, axis=-1)
    new = jnp.tanh(new + jax.nn.sigmoid(reset + reset_before) * new_before)
    keep = jax.nn.sigmoid(keep + keep_before)
    return (1 - keep) * new + keep * hidden


def lstm(
    x: jax.Array,
    hidden: jax.Array,
    cell: jax.Array,
    layers: list[list[jax.Array]],
    bidirectional: bool = False,
    batch_first: bool = False,
) -> tuple[jax.Array, ...]:
    """An LSTM of several layers: outputs, hidden states, cell states."""
    return recurrent_layers(x, (hidden, cell), layers, lstm_step, bidirectional, batch_first)


def gru(
    x: jax.Array,
    hidden: jax.Array,
    layers: list[list[jax.Array]],
    bidirectional: bool = False,
    batch_first: bool = False,
) -> tuple[jax.Array, ...]:
    """A GRU of several layers: outputs and hidden states."""

    def step(hidden: jax.Array, inputs: jax.Array, weights: list[jax.Array]) -> tuple[jax.Array]:
        return (gru_step(hidden, inputs, weights),)

    return recurrent_layers(x, (hidden,), layers, step, bidirectional, batch_first)


def simple_rnn(
    x: jax.Array,
    hidden: jax.Array,
    layers: list[list[jax.Array]],
    relu: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
) -> tuple[jax.Array, ...]:
    """A plain recurrent network of several layers: outputs and hidden states."""

    def step(hidden: jax.Array, inputs: jax.Array, weights: list[jax.Array]) -> tuple[jax.Array]:
        total = inputs + hidden @ weights[1].T
        if len(weights) > 2:
            total = total + weights[2] + weights[3]
        return (jax.nn.relu(total) if relu else jnp.tanh(total),)

    return recurrent_layers(x, (hidden,), layers, step, bidirectional, batch_first)
