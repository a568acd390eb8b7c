"""The parts of a vision transformer, with timm's interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from timm.models.layers import DropPath, to_2tuple


class PatchEmbed(nn.Module):
    """Patches of an image as a sequence."""

    def __init__(
        self,
        img_size: Any = 224,
        patch_size: Any = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        bias: bool = True,
    ) -> None:
        """A convolution as large as a patch."""
        super().__init__()
        self.img_size, self.patch_size = to_2tuple(img_size), to_2tuple(patch_size)
        sides = [
            image // patch for image, patch in zip(self.img_size, self.patch_size, strict=True)
        ]
        self.grid_size = tuple(sides)
        self.num_patches = sides[0] * sides[1]
        self.proj = nn.Conv2d(in_chans, embed_dim, self.patch_size, self.patch_size, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, patches, channels)."""
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Self-attention."""

    def __init__(
        self, dim: int, num_heads: int = 8, qkv_bias: bool = False, **ignored: Any
    ) -> None:
        """Without dropout."""
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        batch, length, channels = x.shape
        parts = self.qkv(x).reshape(batch, length, 3, self.num_heads, channels // self.num_heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(dim=-1)
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, length, channels))


class Mlp(nn.Module):
    """Two linear layers."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        act_layer: Callable[[], nn.Module] = nn.GELU,
        drop: float = 0.0,
    ) -> None:
        """As wide inside as is said."""
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features or in_features)
        self.act = act_layer()
        self.fc2 = nn.Linear(hidden_features or in_features, out_features or in_features)
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply both."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Block(nn.Module):
    """Attention and an MLP, each with a residual."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = False,
        drop_path: float = 0.0,
        norm_layer: Callable[[int], nn.Module] = nn.LayerNorm,
        **ignored: Any,
    ) -> None:
        """Norms first."""
        super().__init__()
        self.norm1 = norm_layer(dim)
        self.attn = Attention(dim, num_heads, qkv_bias)
        self.drop_path = DropPath(drop_path)
        self.norm2 = norm_layer(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply both."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))
