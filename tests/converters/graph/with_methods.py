"""Small models with more methods than forward."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Coder(nn.Module):
    """An autoencoder of images."""

    def __init__(self, width: int = 10, latent: int = 4) -> None:
        super().__init__()
        self.inward = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU())
        self.mean = nn.Linear(width, latent)
        self.drop = nn.Dropout(0.1)
        self.outward = nn.Linear(latent, width)
        self.pixels = nn.ConvTranspose2d(width, 3, 4, 4)
        self.register_buffer("spread", torch.linspace(0.5, 1.5, latent))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Give the code of images. Their size may be any."""
        h = self.inward(x).mean((2, 3))  # pooled
        return self.mean(self.drop(h)) * self.spread

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.outward(z / self.spread))
        return torch.tanh(self.pixels(h[:, :, None, None]))

    def widths(self) -> list[int]:
        return [4]

    def code_of(self) -> nn.Module:
        return self.mean

    def freeze(self) -> None:
        self.mean.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.encode(x)
        return self.decode(z), z


class Coupling(nn.Module):
    def __init__(self, dim: int, hidden: int, flip: bool) -> None:
        super().__init__()
        mask = (torch.arange(dim) % 2 == int(flip)).float()
        self.register_buffer("mask", mask)
        self.s = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, dim))
        self.t = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = x * self.mask
        s = torch.tanh(self.s(kept)) * (1 - self.mask)
        return kept + (1 - self.mask) * (x * s.exp() + self.t(kept)), s.sum(-1)

    def inverse(self, y: torch.Tensor) -> torch.Tensor:
        kept = y * self.mask
        s = torch.tanh(self.s(kept)) * (1 - self.mask)
        return kept + (1 - self.mask) * (y - self.t(kept)) * torch.exp(-s)


class Flow(nn.Module):
    """A real-valued flow of couplings."""

    def __init__(self, dim: int = 6, hidden: int = 10, steps: int = 3) -> None:
        super().__init__()
        self.flows = nn.ModuleList([Coupling(dim, hidden, bool(i % 2)) for i in range(steps)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.new_zeros(x.shape[0])
        for flow in self.flows:
            x, one = flow(x)
            total = total + one
        return x, total

    def inverse(self, y: torch.Tensor) -> torch.Tensor:
        for flow in reversed(self.flows):
            y = flow.inverse(y)
        return y

    @torch.no_grad()
    def sample(self, z: torch.Tensor) -> torch.Tensor:
        return self.inverse(z)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.norm(x))


class Lm(nn.Module):
    """A decoder whose hidden states serve as an embedding too."""

    def __init__(self, vocab: int = 19, dim: int = 12, heads: int = 3, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.places = nn.Embedding(16, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def embed(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Give the mean of the hidden states where the mask is true."""
        x = self.hidden(ids)
        weight = mask.float().unsqueeze(-1)
        return functional.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(ids))
