"""Recurrent nets, classifiers of text, and torch's own attention layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from flax import linen, nnx
from torch import nn

from converters.modules import linen as torch_linen
from converters.modules import nnx as torch_nnx
from tests.parity.pairs.pair import Fault, Pair, blank, ids, normal


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 7, num_layers=2, batch_first=True)
        self.fc = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(x)[0])


class LinenLstm(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = x[:, ::-1] if self.fault == "reversed-time" else x
        x = torch_linen.LSTM(7, num_layers=2, batch_first=True, name="lstm")(x)[0]
        return linen.Dense(3, name="fc")(x)


def gates_of_keras(weights: dict[str, Any]) -> None:
    """i, f, g, o → i, g, f, o."""
    for name, array in weights.items():
        if "/lstm/" in name:
            i, f, g, o = np.split(array, 4, -1)
            weights[name] = np.concatenate([i, g, f, o], -1)


LSTM = Pair(
    "lstm",
    "linen",
    Lstm,
    LinenLstm,
    lambda g: {"x": normal(g, 2, 6, 5)},
    faults=(
        Fault(
            "lstm-gates",
            "the gates are stored in another framework's order (i, g, f, o)",
            "lstm",
            "gate-order",
            spoil=gates_of_keras,
        ),
        Fault("reversed-time", "the sequence goes in backwards", "", "reversed-time"),
    ),
)


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 6)
        self.gru = nn.GRU(6, 8, batch_first=True)
        self.fc = nn.Linear(8, 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.fc(self.gru(self.embed(input_ids))[0][:, -1])


class ResetBefore(nnx.Module):
    """A GRU as its paper has it: the reset gate works on the state, before the hidden product."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        zeros = jnp.zeros
        self.input_kernel_l0 = nnx.Param(zeros((6, 24)))
        self.hidden_kernel_l0 = nnx.Param(zeros((8, 24)))
        self.input_bias_l0 = nnx.Param(zeros(24))
        self.hidden_bias_l0 = nnx.Param(zeros(24))

    def __call__(self, x: Any) -> Any:
        w, b = self.hidden_kernel_l0[...], self.hidden_bias_l0[...]
        given = x @ self.input_kernel_l0[...] + self.input_bias_l0[...]

        def step(h: Any, row: Any) -> Any:
            r_in, z_in, n_in = jnp.split(row, 3, -1)
            r = nnx.sigmoid(r_in + h @ w[:, :8] + b[:8])
            z = nnx.sigmoid(z_in + h @ w[:, 8:16] + b[8:16])
            n = jnp.tanh(n_in + (r * h) @ w[:, 16:] + b[16:])
            h = (1 - z) * n + z * h
            return h, h

        last, states = jax.lax.scan(step, jnp.zeros((len(x), 8), x.dtype), given.swapaxes(0, 1))
        return states.swapaxes(0, 1), last[None]


class NnxGru(nnx.Module):
    def __init__(self, fault: str = "", *, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(17, 6, rngs=rngs)
        if fault == "gru-reset":
            self.gru = ResetBefore(rngs)
        else:
            self.gru = torch_nnx.GRU(6, 8, batch_first=True, rngs=rngs)
        self.fc = nnx.Linear(8, 4, rngs=rngs)
        self.fault = fault

    def __call__(self, input_ids: Any) -> Any:
        states = self.gru(self.embed(input_ids))[0]
        return self.fc(states[:, 0 if self.fault == "first-state" else -1])


GRU = Pair(
    "gru",
    "nnx",
    Gru,
    lambda fault: blank(NnxGru, fault),
    lambda g: {"input_ids": ids(g, 17, 3, 6)},
    faults=(
        Fault(
            "gru-reset",
            "the reset gate before the hidden product, torch and cuDNN have it after",
            "gru",
            "gru-reset",
        ),
        Fault("first-state", "the first state is read, not the last", "", "token-pooling"),
    ),
)


class BagClassifier(nn.Module):
    """The mean of the embeddings of what is no padding (0)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(19, 6, padding_idx=0)
        self.fc1 = nn.Linear(6, 9)
        self.fc2 = nn.Linear(9, 3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        counts = (input_ids != 0).to(self.embed.weight.dtype)[..., None]
        x = (self.embed(input_ids) * counts).sum(1) / counts.sum(1)
        return self.fc2(F.elu(self.fc1(x)))


class LinenBagClassifier(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, input_ids: Any) -> Any:
        x = linen.Embed(19, 6, name="embed")(input_ids)
        counts = (input_ids != 0).astype(x.dtype)[..., None]
        if self.fault == "mean-counts-padding":
            x = (x * counts).mean(1)
        else:
            x = (x * counts).sum(1) / counts.sum(1)
        x = linen.Dense(9, name="fc1")(x)
        x = linen.selu(x) if self.fault == "selu-for-elu" else linen.elu(x)
        return linen.Dense(3, name="fc2")(x)


def padded_ids(g: np.random.Generator) -> dict[str, Any]:
    rows = ids(g, 19, 3, 8)
    rows[0, 5:], rows[1, 7:] = 0, 0
    return {"input_ids": rows}


BAG = Pair(
    "text_bag",
    "linen",
    BagClassifier,
    LinenBagClassifier,
    padded_ids,
    faults=(
        Fault("mean-counts-padding", "the mean is over the padding too", "", "mask-ignored"),
        Fault("selu-for-elu", "selu in the place of elu", "", "activation"),
    ),
)


class TorchAttention(nn.Module):
    """torch's attention with a padding mask, whose True is "not allowed"."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.attn = nn.MultiheadAttention(12, 3, batch_first=True)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y, _ = self.attn(y, y, y, key_padding_mask=padding, need_weights=False)
        return self.fc(x + y)


class LinenAttention(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any, padding: Any) -> Any:
        y = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False, name="norm")(x)
        mask = (padding if self.fault == "mask-polarity" else ~padding)[:, None, None, :]
        if self.fault == "mask-missing":
            mask = None
        attention = linen.MultiHeadDotProductAttention(3, deterministic=True, name="attn")
        return linen.Dense(5, name="fc")(x + attention(y, y, mask=mask))


def padded(g: np.random.Generator) -> dict[str, Any]:
    padding = np.zeros((2, 7), bool)
    padding[0, 4:], padding[1, 6:] = True, True
    return {"x": normal(g, 2, 7, 12), "padding": padding}


def query_for_key(weights: dict[str, Any]) -> None:
    """key, query, value were taken for query, key, value."""
    for part in ("kernel", "bias"):
        one, two = (f"params/attn/{name}/{part}" for name in ("query", "value"))
        weights[one], weights[two] = weights[two], weights[one]


ATTENTION = Pair(
    "attention",
    "linen",
    TorchAttention,
    LinenAttention,
    padded,
    faults=(
        Fault(
            "mask-polarity",
            "torch's boolean masks say what is not allowed, Flax's what is",
            "attn",
            "mask-polarity",
        ),
        Fault("mask-missing", "the padding mask is not passed", "attn", "mask-ignored"),
        Fault(
            "qkv-order",
            "the fused projection was cut in another order (v, k, q)",
            "attn",
            "qkv-layout",
            spoil=query_for_key,
        ),
    ),
)


class PostNorm(nn.Module):
    """torch's own encoder layers, their defaults: post-norm, relu."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(15, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 18, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(input_ids)))


class LinenPostNorm(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, input_ids: Any) -> Any:
        x = linen.Embed(15, 8, name="embed")(input_ids)
        activation = "gelu" if self.fault == "gelu-for-relu" else "relu"
        first = self.fault == "norm-first"

        def layer() -> Any:
            return torch_linen.TransformerEncoderLayer(
                8, 2, 18, batch_first=True, activation=activation, norm_first=first, parent=None
            )

        x = torch_linen.TransformerEncoder(layer, 2, name="encoder")(x)
        return linen.Dense(4, name="head")(x)


POST_NORM = Pair(
    "encoder_post",
    "linen",
    PostNorm,
    LinenPostNorm,
    lambda g: {"input_ids": ids(g, 15, 2, 6)},
    faults=(
        Fault("norm-first", "pre-norm taken for granted", "encoder.layers.0", "norm-place"),
        Fault("gelu-for-relu", "gelu in the place of relu", "encoder.layers.0", "activation"),
    ),
)

PAIRS = (LSTM, GRU, BAG, ATTENTION, POST_NORM)
