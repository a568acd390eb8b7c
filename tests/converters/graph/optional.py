"""Modules with inputs that a caller may leave out."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Attention(nn.Module):
    """Attention whose scores a mask of truths fills."""

    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """A layer that hands its mask on."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x + self.attention(self.norm(x), mask)


class Encoder(nn.Module):
    """Two layers, and a mean over what the mask leaves."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.dropout(self.embed(ids))
        for layer in self.layers:
            x = layer(x, mask)
        if mask is None:
            return x.mean(dim=1)
        seen = mask[..., None].to(x.dtype)
        return (x * seen).sum(dim=1) / seen.sum(dim=1).clamp(min=1)


class Additive(nn.Module):
    """A causal decoder that adds a mask to its scores, and whose positions may be given."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.places = nn.Embedding(16, width)
        self.qkv = nn.Linear(width, 3 * width)

    def forward(
        self,
        ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        length = ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length)[None]
        x = self.embed(ids) + self.places(position_ids)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1)
        bias = torch.full((length, length), -1e4, dtype=x.dtype).triu(1)
        if attention_mask is not None:
            bias = bias + (1.0 - attention_mask[:, None].to(x.dtype)) * -1e4
        scores = scores + bias
        return scores.softmax(dim=-1) @ v


class Fused(nn.Module):
    """torch's own attention with a mask of truths or biases, or none."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (one[:, None] for one in (self.q(x), self.k(x), x))
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0]


class Together(nn.Module):
    """Two inputs whose effect is not the sum of that of each."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(
        self, x: torch.Tensor, a: torch.Tensor | None = None, b: torch.Tensor | None = None
    ) -> torch.Tensor:
        y = self.linear(x)
        if a is not None and b is None:
            y = y * a.exp()
        if b is not None:
            y = y + b
        return y.tanh()


class Averaged(nn.Module):
    """The mean over the tokens: their number is the mask's sum, or the length."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.head(x)
        count = y.shape[1] if mask is None else mask.sum()
        return y.sum(dim=1) / count


class Normed(nn.Module):
    """A change in place with the mask only: that recording is decomposed, down to the norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x, mask=None):
        x = self.norm(x)
        if mask is not None:
            x = x.clone()
            x.masked_fill_(~mask, 0.5)
        return self.layer(x)
