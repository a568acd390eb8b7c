"""A torch model, and Flax ones whose names have nothing in common with its names; some of them are wrong."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from flax import linen
from torch import nn

WIDTH, HEADS, WORDS, LENGTH = 12, 3, 17, 7


class TorchAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.wq, self.wk, self.wv)
        )
        scores = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)).softmax(-1)
        return self.wo((scores @ v).transpose(1, 2).flatten(2))


class TorchBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = TorchAttention()
        self.wide, self.narrow = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Tower(nn.Module):
    """Words in, one vector out; a table of positions and a token of its own."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(0.3 * torch.randn(LENGTH + 1, WIDTH))
        self.summary = nn.Parameter(0.3 * torch.randn(1, 1, WIDTH))
        self.blocks = nn.ModuleList([TorchBlock() for _ in range(depth)])
        self.last = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        x = torch.cat([self.summary.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.out(self.last(x)[:, 0])


class FlaxBlock(linen.Module):
    """`wrong` names what is done otherwise."""

    wrong: str = ""
    order: str = "qkv"

    @linen.compact
    def __call__(self, x: Any) -> Any:
        def norm() -> Any:
            eps = 1e-6 if self.wrong == "eps" else 1e-5
            return linen.LayerNorm(epsilon=eps, use_fast_variance=False)

        y = norm()(x)
        made = {one: linen.DenseGeneral((HEADS, WIDTH // HEADS))(y) for one in self.order}
        q, k, v = (made[one] for one in "qkv")
        if self.wrong == "rotary halves":
            half = q.shape[-1] // 2
            q = jnp.concatenate([-q[..., half:], q[..., :half]], -1)
        scale = 1.0 if self.wrong == "scale" else math.sqrt(WIDTH // HEADS)
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / scale)
        y = jnp.einsum("bhqk,bkhd->bqhd", scores, v)
        bias = self.wrong != "missing bias"
        y = linen.DenseGeneral(WIDTH, axis=(-2, -1), use_bias=bias)(y)
        if self.wrong == "norm after":
            x = norm()(x + y)
            y = linen.Dense(WIDTH)(linen.gelu(linen.Dense(20)(x), approximate=False))
            return x + y
        x = y if self.wrong == "missing residual" else x + y
        y = linen.Dense(20)(norm()(x))
        y = {"gelu-tanh": linen.gelu, "relu": linen.relu}.get(
            self.wrong, lambda one: linen.gelu(one, approximate=False)
        )(y)
        y = linen.Dense(WIDTH)(y)
        return x + (1.01 * y if self.wrong == "scaled branch" else y)


class FlaxTower(linen.Module):
    """`wrong` is of the second block, or `everywhere`; `depth` other than 2 has a block more or less."""

    wrong: str = ""
    order: str = "qkv"
    depth: int = 2
    everywhere: bool = False

    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        x = linen.Embed(WORDS, WIDTH)(tokens)
        if self.wrong == "words scaled":
            x = x * math.sqrt(WIDTH)
        token = self.param("a", linen.initializers.zeros, (1, 1, WIDTH))
        table = self.param("b", linen.initializers.zeros, (1, LENGTH + 1, WIDTH))
        x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, WIDTH)), x], 1)
        x = x + (table[:, ::-1] if self.wrong == "positions reversed" else table)
        for number in range(self.depth):
            here = number == 1 or self.everywhere
            x = FlaxBlock(self.wrong if here else "", self.order)(x)
        x = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False)(x)
        return linen.Dense(5)(x.mean(1) if self.wrong == "mean" else x[:, 0])


class TorchResidual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.c2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.n1, self.n2, self.n3 = (nn.BatchNorm2d(after) for _ in range(3))
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.n2(self.c2(F.relu(self.n1(self.c1(x)))))
        return F.relu(y + self.n3(self.short(x)))


class ConvNet(nn.Module):
    """Images in; torch calls the shortcut after its block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.one, self.two = TorchResidual(4, 6, 2), TorchResidual(6, 6, 1)
        self.head = nn.Linear(6 * 4 * 3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.two(self.one(self.stem(x))).flatten(1))


class FlaxResidual(linen.Module):
    wrong: str
    width: int
    stride: int

    @linen.compact
    def __call__(self, x: Any) -> Any:
        def norm() -> Any:
            eps = 1e-3 if self.wrong == "eps" else 1e-5
            return linen.BatchNorm(self.wrong != "training", epsilon=eps)

        steps = (self.stride, self.stride)
        same: Any = "SAME" if self.wrong == "padding" else ((1, 1), (1, 1))
        short = linen.Conv(self.width, (1, 1), steps, use_bias=False)(x)
        short = norm()(short)  # called first
        y = norm()(linen.Conv(self.width, (3, 3), steps, same, use_bias=False)(x))
        y = linen.silu(y) if self.wrong == "silu" else linen.relu(y)
        y = norm()(linen.Conv(self.width, (3, 3), padding=((1, 1), (1, 1)), use_bias=False)(y))
        return y if self.wrong == "missing relu" else linen.relu(y + short)


class FlaxConvNet(linen.Module):
    wrong: str = ""
    flatten: str = "as torch"

    @linen.compact
    def __call__(self, image: Any) -> Any:
        if self.wrong == "normalized":
            image = (image - 0.45) / 0.22
        x = linen.Conv(4, (3, 3), padding=((1, 1), (1, 1)))(image)
        x = FlaxResidual(self.wrong, 6, 2)(x)
        x = FlaxResidual("", 6, 1)(x)
        x = x.transpose(0, 3, 1, 2) if self.flatten == "as torch" else x
        return linen.Dense(5)(x.reshape(len(x), -1))


def words(count: int = 2) -> list[dict[str, Any]]:
    """Inputs of a tower."""
    random = np.random.default_rng(0)
    return [{"ids": random.integers(0, WORDS, (2, LENGTH))} for _ in range(count)]


def images(count: int = 2) -> list[dict[str, Any]]:
    """Inputs of a net of convolutions."""
    random = np.random.default_rng(0)
    return [{"x": random.normal(size=(2, 3, 8, 6)).astype(np.float32)} for _ in range(count)]
