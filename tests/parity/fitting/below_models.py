"""A torch decoder, and functions of a pytree that do the same with parameters of their own making."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

WIDTH, HEADS, SIDE, INNER, WORDS, DEPTH = 12, 3, 4, 20, 17, 2
EPS = 1e-6


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


class FoldedNorm(Norm):
    """Gemma's: one is added to the scale."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * (1 + self.weight)


def angles(length: int) -> Any:
    return np.arange(length)[:, None] * 10.0 ** (-np.arange(SIDE // 2) / (SIDE // 2))


def turned(x: torch.Tensor) -> torch.Tensor:
    along = torch.from_numpy(angles(x.shape[-2])).to(x.dtype)
    one, other = x.chunk(2, -1)
    sin, cos = along.sin(), along.cos()
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


class Block(nn.Module):
    def __init__(self, norm: type[Norm]) -> None:
        super().__init__()
        self.first, self.second = norm(), norm()
        self.q_proj = nn.Linear(WIDTH, HEADS * SIDE)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, SIDE), nn.Linear(WIDTH, SIDE)
        self.o_proj = nn.Linear(HEADS * SIDE, WIDTH)
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        q, k, v = (
            layer(y).unflatten(-1, (-1, SIDE)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = turned(q) @ turned(k).transpose(-1, -2) / math.sqrt(SIDE)
        x = x + self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, norm: type[Norm] = FoldedNorm) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(norm) for _ in range(DEPTH)])
        self.last = norm()
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) * math.sqrt(WIDTH)
        for block in self.blocks:
            x = block(x)
        return self.out(self.last(x))


class Function:
    """`wrong` names what is done otherwise, `form` how."""

    def __init__(self, form: str = "", wrong: str = "") -> None:
        self.form, self.wrong = form, wrong

    def __call__(self, params: Any, ids: Any) -> Any:
        table = params["table"]
        x = jax.nn.one_hot(ids, WORDS) @ table if self.form == "one-hot" else table[ids]
        x = x * math.sqrt(WIDTH)
        if self.form == "unrolled":
            for number in range(DEPTH):
                x = self._block(x, jax.tree.map(lambda one, at=number: one[at], params["all"]))
        else:
            x, _ = jax.lax.scan(
                lambda x, one: (jax.checkpoint(self._block)(x, one), None), x, params["all"]
            )
        return self._norm(x, params["end"]) @ table.T

    def _norm(self, x: Any, scale: Any) -> Any:
        eps = 1e-5 if self.wrong == "eps" else EPS
        return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + eps) * (1 + scale)

    def _turned(self, x: Any) -> Any:
        along = jnp.asarray(angles(x.shape[1]))[:, None]
        sin, cos = jnp.sin(along), jnp.cos(along)
        if "interleaved" in self.form:
            one, other = x[..., 0::2], x[..., 1::2]
            return jnp.stack([one * cos - other * sin, other * cos + one * sin], -1).reshape(
                x.shape
            )
        one, other = jnp.split(x, 2, -1)
        return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1)

    def _block(self, x: Any, one: Any) -> Any:
        y = self._norm(x, one["a"])
        q = jnp.einsum("btd,ndh->btnh", y, one["q"]) + one["q_bias"]
        k, v = jnp.einsum("btd,ckdh->cbtkh", y, one["kv"]) + one["kv_bias"][:, None, None]
        if self.form == "other order":
            k, v = v, k
        q, k = (q, k) if self.wrong == "no rotation" else (self._turned(q), self._turned(k))
        scores = jnp.einsum("btnh,bskh->bnts", q, k)
        scores = scores if "folded" in self.form else scores / math.sqrt(SIDE)
        found = jnp.einsum("bnts,bskh->btnh", jax.nn.softmax(scores), v)
        x = x + jnp.einsum("btnh,nhd->btd", found, one["o"]) + one["o_bias"]
        y = x if self.wrong == "no norm" else self._norm(x, one["b"])
        gate, up = jnp.einsum("btd,nfd->nbtf", y, one["both"])
        gate = jax.nn.relu(gate) if self.wrong == "relu" else jax.nn.silu(gate)
        return x + (gate * up) @ one["down"]


def tree() -> dict[str, Any]:
    """The parameters of a function, zeros."""
    z, n = np.zeros, DEPTH
    blocks = {
        "a": z((n, WIDTH)),
        "b": z((n, WIDTH)),
        "q": z((n, HEADS, WIDTH, SIDE)),
        "q_bias": z((n, HEADS, SIDE)),
        "kv": z((n, 2, 1, WIDTH, SIDE)),
        "kv_bias": z((n, 2, 1, SIDE)),
        "o": z((n, HEADS, SIDE, WIDTH)),
        "o_bias": z((n, WIDTH)),
        "both": z((n, 2, INNER, WIDTH)),
        "down": z((n, INNER, WIDTH)),
    }
    return {"table": z((WORDS, WIDTH)), "all": blocks, "end": z(WIDTH)}
