"""torch's RNN, LSTM and GRU: steps of the cells, and stacks of layers with one or two directions.

A layer's weights are a mapping with the names of `WEIGHTS`. Kernels are (in, gates * hidden), with
gates in torch's order (LSTM: input, forget, cell, output; GRU: reset, update, new), and both biases
are separate as in torch. Absent biases and projections are missing in the mapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

Kind = Literal["RNN", "LSTM", "GRU"]
Carry = tuple[Array, ...]  # (h,) or, for an LSTM, (h, c)

WEIGHTS = ("input_kernel", "hidden_kernel", "input_bias", "hidden_bias", "projection_kernel")
GATES: dict[Kind, int] = {"RNN": 1, "LSTM": 4, "GRU": 3}


def weight_shapes(
    kind: Kind, inputs: int, hidden: int, *, bias: bool = True, projected: int = 0
) -> dict[str, tuple[int, ...]]:
    """Return name → shape of the weights of one layer and direction.

    Args:
        kind: the cell.
        inputs: features of its input.
        hidden: features of its state.
        bias: whether it has the two biases.
        projected: an LSTM's proj_size; 0 without.
    """
    wide = GATES[kind] * hidden
    shapes: dict[str, tuple[int, ...]] = {
        "input_kernel": (inputs, wide),
        "hidden_kernel": (projected or hidden, wide),
    }
    if bias:
        shapes |= {"input_bias": (wide,), "hidden_bias": (wide,)}
    if projected:
        shapes["projection_kernel"] = (hidden, projected)
    return shapes


def stack_shapes(
    kind: Kind,
    inputs: int,
    hidden: int,
    layers: int,
    *,
    bidirectional: bool = False,
    bias: bool = True,
    projected: int = 0,
) -> dict[str, tuple[int, ...]]:
    """Return name → shape of all weights of a stack: `input_kernel_l0`, `hidden_bias_l1_reverse`, …."""
    suffixes = ("", "_reverse") if bidirectional else ("",)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        own = weight_shapes(kind, inputs, hidden, bias=bias, projected=projected)
        for suffix in suffixes:
            shapes |= {f"{name}_l{layer}{suffix}": shape for name, shape in own.items()}
        inputs = (projected or hidden) * len(suffixes)
    return shapes


def by_layer(weights: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the weights of a stack by layer and direction, from their names there."""
    layers: list[list[dict[str, Any]]] = []
    for layer in range(sum(name.startswith("input_kernel_l") for name in weights)):
        directions = []
        for suffix in (f"_l{layer}", f"_l{layer}_reverse"):
            own = {name: weights[name + suffix] for name in WEIGHTS if name + suffix in weights}
            if own:
                directions.append(own)
        if directions:
            layers.append(directions)
    return layers


def run(
    kind: Kind,
    weights: Mapping[str, Any],
    inputs: Array,
    hx: Array | Carry | None,
    *,
    hidden: int,
    projected: int = 0,
    batch_first: bool = False,
    lengths: Array | None = None,
    nonlinearity: str = "tanh",
    between: Any = None,
) -> tuple[Array, Any]:
    """Run a stack with torch's conventions: with or without a batch, whose axis is first or second.

    Args:
        kind: the cell.
        weights: by the names of `stack_shapes`.
        inputs: (time, batch, in), with batch_first (batch, time, in), or (time, in).
        hx: the initial states in torch's form; None for zeros.
        hidden: features of the state.
        projected: an LSTM's proj_size; 0 without.
        batch_first: see inputs.
        lengths: see `stack`.
        nonlinearity: see `stack`.
        between: see `stack`.

    Returns:
        The outputs, in the inputs' arrangement, and the states: h, or (h, c) of an LSTM.
    """
    layers = by_layer(weights)
    batched = inputs.ndim == 3
    if batched and batch_first:
        inputs = inputs.swapaxes(0, 1)
    rows = sum(len(directions) for directions in layers)
    batch = inputs.shape[1:-1]
    if hx is None:
        carry = zeros(kind, rows, batch, hidden, projected, inputs.dtype)
    else:
        carry = tuple(hx) if kind == "LSTM" else (hx,)
    if not batched:
        inputs, carry = inputs[:, None], tuple(state[:, None] for state in carry)
    outputs, carry = stack(
        kind,
        layers,
        inputs,
        carry,
        lengths=lengths,
        nonlinearity=nonlinearity,
        between=between,
    )
    if not batched:
        outputs, carry = outputs[:, 0], tuple(state[:, 0] for state in carry)
    elif batch_first:
        outputs = outputs.swapaxes(0, 1)
    return outputs, carry if kind == "LSTM" else carry[0]


def step(
    kind: Kind, weights: Mapping[str, Any], x: Array, carry: Carry, nonlinearity: str = "tanh"
) -> Carry:
    """Compute one time step: the new (h,) or (h, c).

    Args:
        kind: the cell.
        weights: the weights of one layer and direction.
        x: (…, input).
        carry: (h,) or (h, c), each (…, hidden).
        nonlinearity: "tanh" or "relu", for an RNN only.
    """
    return _advance(kind, weights, _project(weights, x, "input"), carry, nonlinearity)


def stack(
    kind: Kind,
    layers: Sequence[Sequence[Mapping[str, Any]]],
    inputs: Array,
    carry: Carry,
    *,
    lengths: Array | None = None,
    nonlinearity: str = "tanh",
    between: Any = None,
) -> tuple[Array, Carry]:
    """Run layers over a sequence, as `torch.nn.LSTM` does.

    Args:
        kind: the cell.
        layers: for each layer its directions' weights (one, or forward and backward).
        inputs: (time, batch, input).
        carry: (h,) or (h, c), each (layers * directions, batch, …).
        lengths: the length of each sequence in the batch, (batch,), as in torch's packed sequences.
            Outputs beyond are 0, and the final states are those of the last real step. None if all
            are full.
        nonlinearity: "tanh" or "relu", for an RNN only.
        between: a function applied to the outputs of every layer but the last (dropout), or None.

    Returns:
        The outputs (time, batch, directions * hidden) and the final states, shaped as `carry`.
    """
    final: list[Carry] = []
    for number, directions in enumerate(layers):
        outputs = []
        for direction, weights in enumerate(directions):
            start = tuple(state[len(final)] for state in carry)
            output, last = _scan(
                kind, weights, inputs, start, lengths, nonlinearity, backward=direction == 1
            )
            outputs.append(output)
            final.append(last)
        inputs = jnp.concatenate(outputs, axis=-1)
        if between is not None and number + 1 < len(layers):
            inputs = between(inputs)
    return inputs, tuple(jnp.stack(states) for states in zip(*final, strict=True))


def zeros(
    kind: Kind,
    rows: int,
    batch: tuple[int, ...],
    hidden: int,
    projected: int,
    dtype: DTypeLike = jnp.float32,
) -> Carry:
    """Return the default initial states of torch: zeros."""
    h = jnp.zeros((rows, *batch, projected or hidden), dtype)
    return (h, jnp.zeros((rows, *batch, hidden), dtype)) if kind == "LSTM" else (h,)


def _wide(x: Array) -> Any:
    """Return the dtype in which gates are computed: float32 for bfloat16, as in torch's kernels."""
    return jnp.promote_types(x.dtype, jnp.float32)


def _project(weights: Mapping[str, Any], x: Array, side: str) -> Array:
    y = jnp.matmul(x, weights[f"{side}_kernel"], preferred_element_type=_wide(x))
    return y + weights[f"{side}_bias"] if f"{side}_bias" in weights else y


def _advance(
    kind: Kind, weights: Mapping[str, Any], projected: Array, carry: Carry, nonlinearity: str
) -> Carry:
    """Advance one step, given the input already multiplied with its kernel."""
    hidden = _project(weights, carry[0], "hidden")
    if kind == "RNN":
        activate = {"tanh": jnp.tanh, "relu": jax.nn.relu}[nonlinearity]
        return (activate(projected + hidden).astype(carry[0].dtype),)
    if kind == "GRU":
        x_r, x_z, x_n = jnp.split(projected, 3, axis=-1)
        h_r, h_z, h_n = jnp.split(hidden, 3, axis=-1)
        update = jax.nn.sigmoid(x_z + h_z)
        new = jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * h_n)
        return (((1 - update) * new + update * carry[0]).astype(carry[0].dtype),)
    i, f, g, o = jnp.split(projected + hidden, 4, axis=-1)
    c = jax.nn.sigmoid(f) * carry[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = (jax.nn.sigmoid(o) * jnp.tanh(c)).astype(carry[0].dtype)
    if "projection_kernel" in weights:
        h = h @ weights["projection_kernel"]
    return h, c.astype(carry[1].dtype)


def _scan(
    kind: Kind,
    weights: Mapping[str, Any],
    inputs: Array,
    carry: Carry,
    lengths: Array | None,
    nonlinearity: str,
    *,
    backward: bool,
) -> tuple[Array, Carry]:
    # One product for all steps: the input's contribution does not depend on the state.
    projected = _project(weights, inputs, "input")

    def advance(carry: Carry, at: tuple[Array, Array]) -> tuple[Carry, Array]:
        x, time = at
        new = _advance(kind, weights, x, carry, nonlinearity)
        if lengths is None:
            return new, new[0]
        # Backward, the padding comes first: the state stays the initial one until the last real
        # step.
        real = (time < lengths)[:, None]
        kept = tuple(jnp.where(real, now, old) for now, old in zip(new, carry, strict=True))
        return kept, jnp.where(real, new[0], 0)

    times = jnp.arange(inputs.shape[0])
    # An LSTM's c stays in the wide dtype from step to step.
    start = (carry[0], *(state.astype(_wide(state)) for state in carry[1:]))
    last, outputs = jax.lax.scan(advance, start, (projected, times), reverse=backward)
    return outputs, tuple(now.astype(old.dtype) for now, old in zip(last, carry, strict=True))
