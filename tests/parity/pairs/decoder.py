"""Decoders as those of Llama and Gemma, tied heads, and models of which the port is torch again."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from flax import linen, nnx
from torch import nn

from tests.parity.pairs.pair import Fault, Pair, blank, ids

WIDTH, HEADS, KEYS, SIZE, VOCABULARY = 16, 4, 2, 4, 31
THETA = 5e5


def frequencies(theta: float = THETA) -> np.ndarray[Any, Any]:
    return (1.0 / theta ** (np.arange(0, SIZE, 2) / SIZE)).astype(np.float32)


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5, *, one_plus: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if one_plus else torch.ones(width))
        self.eps, self.one_plus = eps, one_plus

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * (1 + self.weight if self.one_plus else self.weight)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """By halves; x: (batch, heads, length, size)."""
    places = torch.arange(x.shape[2], dtype=torch.float32, device=x.device)
    angles = places[:, None] * torch.from_numpy(frequencies()).to(x.device)
    angles = torch.cat([angles, angles], -1).to(torch.promote_types(x.dtype, torch.float32))
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat([-two, one], -1) * sin


class RotaryAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k_proj = nn.Linear(WIDTH, KEYS * SIZE, bias=False)
        self.v_proj = nn.Linear(WIDTH, KEYS * SIZE, bias=False)
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = rotated(self.q_proj(x).view(batch, length, HEADS, SIZE).transpose(1, 2))
        k = rotated(self.k_proj(x).view(batch, length, KEYS, SIZE).transpose(1, 2))
        v = self.v_proj(x).view(batch, length, KEYS, SIZE).transpose(1, 2)
        k, v = (one.repeat_interleave(HEADS // KEYS, 1) for one in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, HEADS * SIZE))


class SwiGlu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Linear(WIDTH, 44, bias=False)
        self.down = nn.Linear(22, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class LlamaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm = RmsNorm(WIDTH)
        self.self_attn = RotaryAttention()
        self.post_norm = RmsNorm(WIDTH)
        self.mlp = SwiGlu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        self.layers = nn.ModuleList([LlamaLayer(), LlamaLayer()])
        self.norm = RmsNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class NnxRmsNorm(nnx.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        self.weight = nnx.Param(jnp.ones(width))
        self.eps = eps

    def __call__(self, x: Any) -> Any:
        x = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + self.eps)
        return x * self.weight[...]


def jax_rotated(x: Any, fault: str) -> Any:
    """x: (batch, heads, length, size)."""
    theta = 1e4 if fault == "rotary-base" else THETA
    places = jnp.arange(x.shape[2], dtype=jnp.float32) + (fault == "rotary-offset")
    angles = (places[:, None] * frequencies(theta)).astype(jnp.promote_types(x.dtype, jnp.float32))
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    if fault == "rotary-interleaved":
        one, two = x[..., ::2], x[..., 1::2]
        pair = jnp.stack([one * cos - two * sin, two * cos + one * sin], -1)
        return pair.reshape(x.shape)
    one, two = jnp.split(x, 2, -1)
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


class NnxRotaryAttention(nnx.Module):
    def __init__(self, fault: str, rngs: nnx.Rngs) -> None:
        def linear(inputs: int, outputs: int) -> Any:
            return nnx.Linear(inputs, outputs, use_bias=False, rngs=rngs)

        self.q_proj = linear(WIDTH, HEADS * SIZE)
        self.k_proj = linear(WIDTH, KEYS * SIZE)
        self.v_proj = linear(WIDTH, KEYS * SIZE)
        self.o_proj = linear(HEADS * SIZE, WIDTH)
        self.fault = fault

    def __call__(self, x: Any) -> Any:
        batch, length, _ = x.shape

        def heads(y: Any) -> Any:
            return y.reshape(batch, length, -1, SIZE).transpose(0, 2, 1, 3)

        q = jax_rotated(heads(self.q_proj(x)), self.fault)
        k, v = jax_rotated(heads(self.k_proj(x)), self.fault), heads(self.v_proj(x))
        if self.fault == "kv-tiled":
            k, v = (jnp.tile(one, (1, HEADS // KEYS, 1, 1)) for one in (k, v))
        else:
            k, v = (jnp.repeat(one, HEADS // KEYS, 1) for one in (k, v))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(SIZE)
        if self.fault != "causal-missing":
            allowed = jnp.tril(jnp.ones((length, length), bool))
            scores = jnp.where(allowed, scores, -jnp.inf)
        y = jax.nn.softmax(scores, -1) @ v
        return self.o_proj(y.transpose(0, 2, 1, 3).reshape(batch, length, -1))


class NnxSwiGlu(nnx.Module):
    def __init__(self, fault: str, rngs: nnx.Rngs) -> None:
        self.gate_up = nnx.Linear(WIDTH, 44, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(22, WIDTH, use_bias=False, rngs=rngs)
        self.fault = fault

    def __call__(self, x: Any) -> Any:
        gate, up = jnp.split(self.gate_up(x), 2, -1)
        if self.fault == "swiglu-halves":
            gate, up = up, gate
        return self.down((nnx.gelu(gate) if self.fault == "geglu" else nnx.silu(gate)) * up)


class NnxLlamaLayer(nnx.Module):
    def __init__(self, fault: str, rngs: nnx.Rngs) -> None:
        self.input_norm = NnxRmsNorm(WIDTH, 1e-6 if fault == "rmsnorm-eps" else 1e-5)
        self.self_attn = NnxRotaryAttention(fault, rngs)
        self.post_norm = NnxRmsNorm(WIDTH)
        self.mlp = NnxSwiGlu(fault, rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.self_attn(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class NnxLlama(nnx.Module):
    def __init__(self, fault: str = "", *, rngs: nnx.Rngs) -> None:
        self.embed_tokens = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.layers = nnx.List([NnxLlamaLayer("", rngs), NnxLlamaLayer(fault, rngs)])
        self.norm = NnxRmsNorm(WIDTH)
        self.lm_head = nnx.Linear(WIDTH, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, input_ids: Any) -> Any:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


ATTENTION = "layers.1.self_attn"
LLAMA = Pair(
    "llama_mini",
    "nnx",
    Llama,
    lambda fault: blank(NnxLlama, fault),
    lambda g: {"input_ids": ids(g, VOCABULARY, 2, 10)},
    faults=(
        Fault(
            "rotary-interleaved",
            "neighbors are turned (Meta's layout), Hugging Face's weights want halves",
            ATTENTION,
            "rotary-layout",
        ),
        Fault("rotary-base", "theta of Llama 2 for weights of Llama 3", ATTENTION, "rotary-base"),
        Fault("kv-tiled", "keys are tiled over the heads, not repeated", ATTENTION, "kv-repeat"),
        Fault("causal-missing", "no causal mask", ATTENTION, "causal-mask"),
        Fault(
            "swiglu-halves",
            "the halves of gate and up are swapped",
            "layers.1.mlp",
            "swapped-halves",
        ),
        Fault("geglu", "gelu in the place of silu", "layers.1.mlp", "activation"),
        Fault("rmsnorm-eps", "1e-6 in the place of 1e-5", "layers.1.input_norm", "norm-eps"),
    ),
)


class GemmaAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(SIZE)
        scores = 5.0 * torch.tanh(scores / 5.0)
        allowed = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        y = scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))


class GemmaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = RmsNorm(WIDTH, 1e-6, one_plus=True)
        self.attn = GemmaAttention()
        self.norm2 = RmsNorm(WIDTH, 1e-6, one_plus=True)
        self.gate = nn.Linear(WIDTH, 22, bias=False)
        self.up = nn.Linear(WIDTH, 22, bias=False)
        self.down = nn.Linear(22, WIDTH, bias=False)
        nn.init.normal_(self.gate.weight, std=0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))


class Gemma(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([GemmaLayer(), GemmaLayer()])
        self.norm = RmsNorm(WIDTH, 1e-6, one_plus=True)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids) * math.sqrt(WIDTH)
        for layer in self.layers:
            x = layer(x)
        logits = self.norm(x) @ self.embed.weight.T
        return 10.0 * torch.tanh(logits / 10.0)


class LinenRmsNorm(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        weight = self.param("weight", linen.initializers.zeros, x.shape[-1:])
        x = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return x * (weight if self.fault == "one-plus-missing" else 1 + weight)


class LinenGemmaAttention(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        batch, length, _ = x.shape
        y = linen.Dense(3 * WIDTH, use_bias=False, name="qkv")(x)
        q, k, v = y.reshape(batch, length, 3, HEADS, SIZE).transpose(2, 0, 3, 1, 4)
        if self.fault == "qkv-order":
            q, k, v = k, v, q
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(SIZE)
        if self.fault != "score-cap-missing":
            scores = 5.0 * jnp.tanh(scores / 5.0)
        allowed = jnp.tril(jnp.ones((length, length), bool), 1 if self.fault == "tril-one" else 0)
        y = jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), -1) @ v
        y = y.transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
        return linen.Dense(WIDTH, use_bias=False, name="out")(y)


class LinenGemmaLayer(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        def dense(features: int, name: str) -> Any:
            return linen.Dense(features, use_bias=False, name=name)

        y = LinenRmsNorm(self.fault, name="norm1")(x)
        x = x + LinenGemmaAttention(self.fault, name="attn")(y)
        y = LinenRmsNorm(self.fault, name="norm2")(x)
        gate = linen.gelu(dense(22, "gate")(y), approximate=self.fault != "gelu-erf")
        return x + dense(WIDTH, "down")(gate * dense(22, "up")(y))


class LinenGemma(linen.Module):
    fault: str = ""

    def setup(self) -> None:
        self.embed = linen.Embed(VOCABULARY, WIDTH)
        self.layers = [LinenGemmaLayer(self.fault), LinenGemmaLayer(self.fault)]
        self.norm = LinenRmsNorm(self.fault)

    def __call__(self, input_ids: Any) -> Any:
        x = self.embed(input_ids)
        x = x if self.fault == "embed-scale-missing" else x * math.sqrt(WIDTH)
        for layer in self.layers:
            x = layer(x)
        logits = self.embed.attend(self.norm(x))
        return logits if self.fault == "soft-cap-missing" else 10.0 * jnp.tanh(logits / 10.0)


GEMMA = Pair(
    "gemma_mini",
    "linen",
    Gemma,
    LinenGemma,
    lambda g: {"input_ids": ids(g, VOCABULARY, 2, 9)},
    faults=(
        Fault(
            "one-plus-missing", "Gemma's norms multiply by 1 + w", "layers.0.norm1", "rms-offset"
        ),
        Fault("embed-scale-missing", "the embeddings are not scaled by √d", "", "embedding-scale"),
        Fault("soft-cap-missing", "the logits are not capped", "", "soft-cap"),
        Fault("score-cap-missing", "the scores are not capped", "layers.0.attn", "soft-cap"),
        Fault("gelu-erf", "the exact gelu, Gemma has the tanh form", "layers.0", "gelu-form"),
        Fault(
            "qkv-order", "the fused projection is cut as (k, v, q)", "layers.0.attn", "qkv-layout"
        ),
        Fault(
            "tril-one", "jnp.tril(…, 1): each token sees the next", "layers.0.attn", "causal-mask"
        ),
    ),
)


class TiedLm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 7)
        self.fc = nn.Linear(7, 7)
        self.norm = nn.LayerNorm(7)
        self.lm_head = nn.Linear(7, 13, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        return self.lm_head(self.norm(x + F.relu(self.fc(x))))


class LinenTiedLm(linen.Module):
    """Its own names, as `linen.compact` gives them, and a head with weights of its own."""

    @linen.compact
    def __call__(self, input_ids: Any) -> Any:
        x = linen.Embed(13, 7, name="Embed_0")(input_ids)
        x = x + linen.relu(linen.Dense(7, name="fc")(x))
        x = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False)(x)
        return linen.Dense(13, use_bias=False, name="lm_head")(x)


def fresh_head(weights: dict[str, Any]) -> None:
    kernel = weights["params/lm_head/kernel"]
    weights["params/lm_head/kernel"] = np.random.default_rng(7).permutation(kernel)


TIED = Pair(
    "tied_lm",
    "linen",
    TiedLm,
    lambda _: LinenTiedLm(),
    lambda g: {"input_ids": ids(g, 13, 2, 6)},
    fitted=True,
    faults=(
        Fault(
            "untied-head",
            "the checkpoint has no key for the tied head, so it was not loaded",
            "lm_head",
            "tied-weights",
            spoil=fresh_head,
        ),
    ),
)

PAIRS = (LLAMA, GEMMA, TIED)
