"""Encoders written out: pre-norm with a causal mask, scanned blocks, BERT."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F  # noqa: N812
from flax import linen
from torch import nn

from tests.parity.pairs.pair import Fault, Pair, ids, normal

WIDTH, HEADS = 12, 3


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, HEADS, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(~allowed, -1e9)
        y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))


class PreBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = SelfAttention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 20)
        self.fc2 = nn.Linear(20, WIDTH)

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), allowed)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(23, WIDTH)
        self.position = nn.Embedding(16, WIDTH)
        self.layer = nn.ModuleList([PreBlock(), PreBlock()])
        self.norm = nn.LayerNorm(WIDTH)
        for table in (self.embed, self.position):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        allowed = places[:, None] >= places[None, :]
        x = self.embed(input_ids) + self.position(places)
        for layer in self.layer:
            x = layer(x, allowed)
        return self.norm(x)


class LinenSelfAttention(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any, allowed: Any) -> Any:
        batch, length, _ = x.shape
        size = WIDTH // HEADS

        def heads(name: str) -> Any:
            y = linen.Dense(WIDTH, name=name)(x)
            if self.fault == "head-split":
                return y.reshape(batch, length, size, HEADS).transpose(0, 3, 1, 2)
            return y.reshape(batch, length, HEADS, size).transpose(0, 2, 1, 3)

        q, k, v = heads("query"), heads("key"), heads("value")
        scale = {"scale-missing": 1.0, "scale-of-width": math.sqrt(WIDTH)}
        scores = q @ k.swapaxes(-1, -2) / scale.get(self.fault, math.sqrt(size))
        scores = jnp.where(allowed, scores, jnp.asarray(-1e9, scores.dtype))
        y = jax.nn.softmax(scores, -2 if self.fault == "softmax-axis" else -1) @ v
        y = y.transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
        return linen.Dense(WIDTH, name="out")(y)


class LinenPreBlock(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any, allowed: Any) -> Any:
        def norm(name: str) -> Any:
            eps = 1e-6 if self.fault == "layernorm-eps" else 1e-5
            return linen.LayerNorm(epsilon=eps, use_fast_variance=False, name=name)

        attention = LinenSelfAttention(self.fault, name="attention")
        if self.fault == "post-norm":
            x = norm("norm1")(x + attention(x, allowed))
            y = linen.Dense(20, name="fc1")(x)
            y = linen.Dense(WIDTH, name="fc2")(linen.gelu(y, approximate=False))
            return norm("norm2")(x + y)
        y = attention(norm("norm1")(x), allowed)
        x = y if self.fault == "missing-residual" else x + y
        y = linen.Dense(20, name="fc1")(norm("norm2")(x))
        y = linen.gelu(y, approximate=self.fault == "gelu-tanh")
        return x + linen.Dense(WIDTH, name="fc2")(y)


class LinenCausal(linen.Module):
    fault: str = ""

    def setup(self) -> None:
        self.embed = linen.Embed(23, WIDTH)
        self.position = linen.Embed(16, WIDTH)
        self.layer = [LinenPreBlock(), LinenPreBlock(self.fault)]
        self.norm = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False)

    def __call__(self, input_ids: Any) -> Any:
        places = jnp.arange(input_ids.shape[1])
        if self.fault == "mask-off-by-one":
            allowed = places[:, None] + 1 >= places[None, :]
        else:
            allowed = places[:, None] >= places[None, :]
        x = self.embed(input_ids) + self.position(places)
        for layer in self.layer[::-1] if self.fault == "layers-swapped" else self.layer:
            x = layer(x, allowed)
        return self.norm(x)


CAUSAL = Pair(
    "encoder_pre",
    "linen",
    Causal,
    LinenCausal,
    lambda g: {"input_ids": ids(g, 23, 2, 9)},
    faults=(
        Fault("scale-missing", "no 1/√d", "layer.1.attention", "attention-scale"),
        Fault(
            "scale-of-width",
            "divided by the root of the width, not of a head's",
            "layer.1.attention",
            "attention-scale",
        ),
        Fault("softmax-axis", "softmax over the queries", "layer.1.attention", "softmax-axis"),
        Fault(
            "head-split",
            "(features, heads) in the place of (heads, features)",
            "layer.1.attention",
            "head-layout",
        ),
        Fault("mask-off-by-one", "the mask lets each token see the next", "", "causal-mask"),
        Fault("missing-residual", "around the attention", "layer.1", "missing-term"),
        Fault("post-norm", "the norms after the sums", "layer.1", "norm-place"),
        Fault("gelu-tanh", "jax's gelu in its default form", "layer.1", "gelu-form"),
        Fault("layernorm-eps", "Flax's default of 1e-6", "layer.1.norm1", "norm-eps"),
        Fault("layers-swapped", "the blocks in the wrong order", "", "other-tensor"),
    ),
)


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(9)
        self.fc1 = nn.Linear(9, 13)
        self.fc2 = nn.Linear(13, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(F.silu(self.fc1(self.norm(x))))


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 9)
        self.steps = nn.ModuleList([Step() for _ in range(4)])
        self.head = nn.Linear(9, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for step in self.steps:
            x = step(x)
        return self.head(x)


class LinenStep(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any, _: Any) -> Any:
        eps = 1e-6 if self.fault == "layernorm-eps" else 1e-5
        y = linen.LayerNorm(epsilon=eps, use_fast_variance=False, name="norm")(x)
        y = linen.Dense(13, name="fc1")(y)
        y = linen.gelu(y) if self.fault == "gelu-for-silu" else linen.silu(y)
        y = linen.Dense(9, name="fc2")(y)
        return (y if self.fault == "missing-residual" else x + y), None


class LinenScanned(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Dense(9, name="stem")(x)
        blocks = linen.scan(
            LinenStep, variable_axes={"params": 0}, split_rngs={"params": True}, length=4
        )
        x, _ = blocks(self.fault, name="steps")(x, None)
        return linen.Dense(4, name="head")(x)


def backwards(weights: dict[str, Any]) -> None:
    for name, array in weights.items():
        if "/steps/" in name:
            weights[name] = array[::-1].copy()


SCANNED = Pair(
    "scanned",
    "linen",
    Stacked,
    LinenScanned,
    lambda g: {"x": normal(g, 2, 5, 6)},
    options={"scan": 0},
    faults=(
        Fault(
            "stack-order",
            "the blocks were stacked in another order",
            "steps.0.norm",
            "other-layers-weights",
            spoil=backwards,
        ),
        Fault(
            "layernorm-eps", "Flax's default of 1e-6, in every block", "steps.0.norm", "norm-eps"
        ),
        Fault("gelu-for-silu", "gelu in the place of silu", "steps.0", "activation"),
        Fault("missing-residual", "in every block", "steps.0", "missing-term"),
    ),
)


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.intermediate = nn.Linear(WIDTH, 18)
        self.output = nn.Linear(18, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.attention(x, allowed))
        return self.output_norm(x + self.output(F.gelu(self.intermediate(x))))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(29, WIDTH)
        self.position_embeddings = nn.Embedding(18, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layer = nn.ModuleList([BertLayer(), BertLayer()])
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.word_embeddings(input_ids) + self.position_embeddings(places)
        x = self.norm(x + self.token_type_embeddings(torch.zeros_like(input_ids)))
        allowed = (attention_mask != 0)[:, None, None, :]
        for layer in self.layer:
            x = layer(x, allowed)
        return x, torch.tanh(self.pooler(x[:, 0]))


class LinenBertLayer(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any, allowed: Any) -> Any:
        eps = 1e-5 if self.fault == "layernorm-eps" else 1e-12

        def norm(name: str) -> Any:
            return linen.LayerNorm(epsilon=eps, use_fast_variance=False, name=name)

        x = norm("attention_norm")(x + LinenSelfAttention(name="attention")(x, allowed))
        y = linen.gelu(linen.Dense(18, name="intermediate")(x), approximate=False)
        return norm("output_norm")(x + linen.Dense(WIDTH, name="output")(y))


class LinenBert(linen.Module):
    fault: str = ""

    def setup(self) -> None:
        self.word_embeddings = linen.Embed(29, WIDTH)
        self.position_embeddings = linen.Embed(18, WIDTH)
        self.token_type_embeddings = linen.Embed(2, WIDTH)
        self.norm = linen.LayerNorm(epsilon=1e-12, use_fast_variance=False)
        self.layer = [LinenBertLayer(self.fault), LinenBertLayer(self.fault)]
        self.pooler = linen.Dense(WIDTH)

    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        places = jnp.arange(input_ids.shape[1])
        places = places + 2 if self.fault == "positions-offset" else places
        x = self.word_embeddings(input_ids) + self.position_embeddings(places)
        types = self.token_type_embeddings(jnp.zeros_like(input_ids))
        x = self.norm(x if self.fault == "token-type-missing" else x + types)
        allowed = (attention_mask != 0)[:, None, None, :]
        if self.fault == "mask-polarity":
            allowed = ~allowed
        for layer in self.layer:
            x = layer(x, allowed)
        first = x[:, -1 if self.fault == "last-token" else 0]
        return x, jnp.tanh(self.pooler(first))


def tokens(g: Any) -> dict[str, Any]:
    mask = ids(g, 2, 2, 8)
    mask[0, 5:] = 0
    return {"input_ids": ids(g, 29, 2, 8), "attention_mask": mask}


BERT = Pair(
    "bert_mini",
    "linen",
    Bert,
    LinenBert,
    tokens,
    faults=(
        Fault("token-type-missing", "the type of the tokens is not added", "", "missing-term"),
        Fault(
            "positions-offset", "positions from 2 on, as in RoBERTa and OPT", "", "position-offset"
        ),
        Fault("last-token", "the pooler reads the last token", "", "token-pooling"),
        Fault(
            "mask-polarity", "1 is taken for what is masked", "layer.0.attention", "mask-polarity"
        ),
        Fault(
            "layernorm-eps",
            "1e-5 in the place of BERT's 1e-12",
            "layer.0.attention_norm",
            "norm-eps",
        ),
    ),
)

PAIRS = (CAUSAL, SCANNED, BERT)
