"""Tagger in Flax, ported from examples.tagger.torch_tagger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import TaggerConfig


def torch_uniform(key: Any, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """torch's default for the weight of a Linear or a Conv: uniform within 1 / sqrt(fan_in)."""
    bound = float(np.prod(shape[:-1])) ** -0.5
    return jax.random.uniform(key, tuple(shape), dtype, -bound, bound)


def uniform_within(bound: float) -> nn.initializers.Initializer:
    """Draws between -bound and bound."""

    def init(key: Any, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, tuple(shape), dtype, -bound, bound)

    return init


Kind = Literal["RNN", "LSTM", "GRU"]


Carry = tuple[Array, ...]  # (h,) or, for an LSTM, (h, c)


GATES: dict[Kind, int] = {"RNN": 1, "LSTM": 4, "GRU": 3}


def weight_shapes(
    kind: Kind, inputs: int, hidden: int, *, bias: bool = True, projected: int = 0
) -> dict[str, tuple[int, ...]]:
    """Name → shape of the weights of one layer and direction.

    Args:
        kind: the cell.
        inputs: features of what it reads.
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


def zeros(
    kind: Kind,
    rows: int,
    batch: tuple[int, ...],
    hidden: int,
    projected: int,
    dtype: DTypeLike = jnp.float32,
) -> Carry:
    """The states that torch starts with where none are given."""
    h = jnp.zeros((rows, *batch, projected or hidden), dtype)
    return (h, jnp.zeros((rows, *batch, hidden), dtype)) if kind == "LSTM" else (h,)


def _wide(x: Array) -> Any:
    """What gates are computed in: of bfloat16 float32, as in torch's kernels."""
    return jnp.promote_types(x.dtype, jnp.float32)


def _project(weights: Mapping[str, Any], x: Array, side: str) -> Array:
    y = jnp.matmul(x, weights[f"{side}_kernel"], preferred_element_type=_wide(x))
    return y + weights[f"{side}_bias"] if f"{side}_bias" in weights else y


def _advance(
    kind: Kind, weights: Mapping[str, Any], projected: Array, carry: Carry, nonlinearity: str
) -> Carry:
    """One step from the input that was already multiplied with its kernel."""
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


def step(
    kind: Kind, weights: Mapping[str, Any], x: Array, carry: Carry, nonlinearity: str = "tanh"
) -> Carry:
    """One time step: the new (h,) or (h, c).

    Args:
        kind: the cell.
        weights: of one layer and direction.
        x: (…, input).
        carry: (h,) or (h, c), each (…, hidden).
        nonlinearity: "tanh" or "relu"; of an RNN only.
    """
    return _advance(kind, weights, _project(weights, x, "input"), carry, nonlinearity)


class _Cell(nn.Module):
    hidden_size: int
    bias: bool = True
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    kind: ClassVar[Kind]

    @nn.compact
    def __call__(self, inputs: Array, hx: Array | Carry | None = None) -> Any:
        """The next h, or (h, c) of an LSTM's cell; without `hx` from zeros."""
        shapes = weight_shapes(self.kind, inputs.shape[-1], self.hidden_size, bias=self.bias)
        inputs, weights = _promoted(self, inputs, shapes)
        if hx is None:
            rows = zeros(self.kind, 1, inputs.shape[:-1], self.hidden_size, 0, inputs.dtype)
            carry: Carry = tuple(state[0] for state in rows)
        else:
            carry = tuple(hx) if self.kind == "LSTM" else (hx,)
        new = step(
            self.kind,
            weights,
            inputs,
            carry,
            getattr(self, "nonlinearity", "tanh"),
        )
        return new if self.kind == "LSTM" else new[0]


def _parameters(module: _Stack | _Cell, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """The weights; they start as torch's do: uniform within 1 / sqrt(hidden_size)."""
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
    module: _Stack | _Cell, inputs: Array, shapes: dict[str, tuple[int, ...]]
) -> tuple[Array, dict[str, Array]]:
    """The input and the weights in the dtype of the computation."""
    weights = _parameters(module, shapes)
    inputs, *arrays = nn.dtypes.promote_dtype(inputs, *weights.values(), dtype=module.dtype)
    return inputs, dict(zip(weights, arrays, strict=True))


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
    """Name → shape of all weights of a stack: `input_kernel_l0`, `hidden_bias_l1_reverse`, …."""
    suffixes = ("", "_reverse") if bidirectional else ("",)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        own = weight_shapes(kind, inputs, hidden, bias=bias, projected=projected)
        for suffix in suffixes:
            shapes |= {f"{name}_l{layer}{suffix}": shape for name, shape in own.items()}
        inputs = (projected or hidden) * len(suffixes)
    return shapes


WEIGHTS = ("input_kernel", "hidden_kernel", "input_bias", "hidden_bias", "projection_kernel")


def by_layer(weights: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The weights of a stack, by layer and direction, from their names there."""
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
    # One product for all steps: the input's share does not depend on the state.
    projected = _project(weights, inputs, "input")

    def advance(carry: Carry, at: tuple[Array, Array]) -> tuple[Carry, Array]:
        x, time = at
        new = _advance(kind, weights, x, carry, nonlinearity)
        if lengths is None:
            return new, new[0]
        # Backward, the padding comes first: the state stays the initial one until the last real step.
        real = (time < lengths)[:, None]
        kept = tuple(jnp.where(real, now, old) for now, old in zip(new, carry, strict=True))
        return kept, jnp.where(real, new[0], 0)

    times = jnp.arange(inputs.shape[0])
    # An LSTM's c stays wide from step to step.
    start = (carry[0], *(state.astype(_wide(state)) for state in carry[1:]))
    last, outputs = jax.lax.scan(advance, start, (projected, times), reverse=backward)
    return outputs, tuple(now.astype(old.dtype) for now, old in zip(last, carry, strict=True))


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
        lengths: of each sequence in the batch, (batch,): what torch's packed sequences say. Outputs
            beyond are 0, the final states those of the last real step. None: all are full.
        nonlinearity: "tanh" or "relu"; of an RNN only.
        between: what is done to the outputs of every layer but the last (dropout), or None.

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
    """A stack on torch's terms: with or without a batch, its axis first or second.

    Args:
        kind: the cell.
        weights: by the names of `stack_shapes`.
        inputs: (time, batch, in), with batch_first (batch, time, in), or (time, in).
        hx: the first states as torch takes them; None: zeros.
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


class _Stack(nn.Module):
    """What RNN, LSTM and GRU have in common; attributes as in torch, the input's size is inferred."""

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
        """Outputs and last states, as torch gives them.

        Args:
            inputs: (time, batch, in), with batch_first (batch, time, in), or (time, in).
            hx: the first states, (layers * directions, batch, hidden); of an LSTM (h, c).
            lengths: of each sequence: what torch's packed sequences say; None: all are full.
            deterministic: whether there is no dropout between the layers.
        """
        projected = getattr(self, "proj_size", 0)
        shapes = stack_shapes(
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
        return run(
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


class LSTM(_Stack):
    """`torch.nn.LSTM`, with proj_size; states are (h, c), torch's order (Flax's cells: (c, h))."""

    proj_size: int = 0

    kind: ClassVar[Kind] = "LSTM"


class Module(nn.Module, kw_only=True):
    """A module of this model.

    Attributes:
        dtype: of the computation; None: that of the weights and inputs.
        param_dtype: of the weights that `init` makes.
        precision: of the products in layers.
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
        self.embed = nn.Embed(
            self.config.vocabulary,
            self.config.embedding,
            embedding_init=nn.initializers.normal(1.0),
            **self.dtypes,
        )
        self.lstm = LSTM(
            hidden_size=self.config.hidden,
            num_layers=2,
            bidirectional=True,
            batch_first=True,
            dropout=0.1,
            **self.dtypes,
        )
        self.norm = nn.LayerNorm(epsilon=1e-05, use_fast_variance=False, **self.dtypes)
        self.out = nn.Dense(
            self.config.tags,
            kernel_init=torch_uniform,
            bias_init=uniform_within((2 * self.config.hidden) ** (-0.5)),
            **self.numerics,
        )

    def __call__(self, ids: jax.Array, deterministic: bool = True) -> jax.Array:
        states, _ = self.lstm(self.embed(ids), deterministic=deterministic)
        # The last state of a direction is not needed: every word has one.
        return self.out(jax.nn.relu(self.norm(states)))
