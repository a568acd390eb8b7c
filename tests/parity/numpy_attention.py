"""The same transformer twice, as torch and as Flax would have it, with faults to plant: for tests."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tests.parity.numpy_model import Array, Run

HEADS, WIDTH, BLOCKS = 2, 8, 3
RNG = np.random.default_rng(0)
WEIGHTS = {
    f"block.{block}.{name}.weight": RNG.standard_normal((WIDTH, WIDTH)) / math.sqrt(WIDTH)
    for block in range(BLOCKS)
    for name in ("q", "k", "v", "o", "up", "down")
}
INPUTS = [RNG.standard_normal((3, 5, WIDTH)) for _ in range(2)]


def heads(x: Array) -> Array:
    return x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)


def softmax(x: Array) -> Array:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def gelu(x: Array, cubic: float = 0.045) -> Array:
    return x * (np.tanh(0.8 * (x + cubic * x**3)) + 1) / 2


def norm(x: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def torch_like(run: Run, x: Array) -> Array:
    """Containers, activations and dropout are modules; heads before time."""
    for block in range(BLOCKS):
        x = run.layer(f"block.{block}", "Block", lambda x, at=block: _block(run, at, x), x)
    return run.layer("pool", "Pool", lambda x: x.mean(1), x)


def _block(run: Run, block: int, x: Array) -> Array:
    def dense(name: str, x: Array) -> Array:
        weight = f"block.{block}.{name}.weight"
        return run.layer(
            f"block.{block}.{name}",
            "Linear",
            lambda x: x @ run.weights[weight],
            x,
            weights=(weight,),
        )

    def attention(x: Array) -> Array:
        q, k, v = (heads(dense(name, x)) for name in "qkv")
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(WIDTH // HEADS)
        scores = run.layer(f"block.{block}.soft", "Softmax", softmax, scores)
        return dense("o", (scores @ v).transpose(0, 2, 1, 3).reshape(x.shape))

    x = x + run.layer(f"block.{block}.attention", "Attention", attention, x)
    x = run.layer(f"block.{block}.norm", "LayerNorm", norm, x)
    inner = run.layer(f"block.{block}.act", "GELU", gelu, dense("up", x))
    inner = run.layer(f"block.{block}.drop", "Dropout", lambda x: x, inner)
    return x + dense("down", inner)


# Block and what is wrong in it: "scale", "eps", "gelu", "residual".
Faults = Mapping[int, str]


def flax_like(run: Run, x: Array, scanned: bool = False, faults: Faults | None = None) -> Array:
    """No module for softmax, activation and dropout; heads after time; other names."""
    for block in range(BLOCKS):
        name = "blocks" if scanned else f"Block_{block}"
        x = run.layer(
            name,
            "FlaxBlock",
            lambda x, at=block, name=name: _flax_block(
                run, name, at, x, (faults or {}).get(at, "")
            ),
            x,
        )
    return x.mean(1)


def _flax_block(run: Run, name: str, block: int, x: Array, fault: str) -> Array:
    def dense(part: str, x: Array, shape: tuple[int, ...] = (WIDTH,)) -> Array:
        kernel = run.weights[f"block.{block}.{part}.weight"]
        return run.layer(
            f"{name}.{part}_proj",
            "Dense",
            lambda x: (x @ kernel).reshape(*x.shape[:2], *shape),
            x,
            weights=(f"params/{name.replace('.', '/')}/{part}_proj/kernel",),
        )

    def attention(x: Array) -> Array:
        q, k, v = (dense(part, x, (HEADS, WIDTH // HEADS)) for part in "qkv")
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) * (
            1 / WIDTH if "scale" in fault else 1 / math.sqrt(WIDTH // HEADS)
        )
        return dense("o", np.einsum("bhqk,bkhd->bqhd", softmax(scores), v).reshape(x.shape))

    x = x + run.layer(f"{name}.attn", "SelfAttention", attention, x)
    x = run.layer(f"{name}.ln", "LayerNorm", lambda x: norm(x, 1e-4 if "eps" in fault else 1e-5), x)
    inner = dense("down", gelu(dense("up", x), 0.04 if "gelu" in fault else 0.045))
    return inner if "residual" in fault else x + inner


def names(prefix: str = "Block_{}") -> dict[str, str]:
    return {
        f"params/{prefix.format(block)}/{part}_proj/kernel": f"block.{block}.{part}.weight"
        for block in range(BLOCKS)
        for part in ("q", "k", "v", "o", "up", "down")
    }
